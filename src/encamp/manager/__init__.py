"""The daemon around the core: bus, store, door, and what the core decides carried out."""
