"""Slurm: what Encamp asks of it, and a private one to try things on."""
