"""Batch systems, as far as Encamp has to do with them: each is a small set of overrides."""
