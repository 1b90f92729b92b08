"""A host's opening towards a batch system: jobs that come to it run in machines made for them."""
