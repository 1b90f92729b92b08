"""Keeping machines on a host."""
