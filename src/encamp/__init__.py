"""Encamp gives a batch job the machine it asks for."""

__version__ = "0.1.0"
