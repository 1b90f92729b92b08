"""Placement: which requests get which hosts, when, and why not yet."""
