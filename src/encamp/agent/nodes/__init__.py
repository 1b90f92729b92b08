"""Worker nodes: the machines of this host that a batch system fills by itself."""
