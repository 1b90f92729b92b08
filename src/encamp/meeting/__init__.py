"""Clients and what runs for them on a host: input, output, files and signals, straight between."""
