"""Machines as worker nodes: how they join a batch system, and how they leave it again."""
