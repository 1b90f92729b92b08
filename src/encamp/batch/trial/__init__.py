"""A batch system with Encamp beside it, private and complete on this machine, to try things on."""
