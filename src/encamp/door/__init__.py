"""The door of a daemon: a socket on its host at which the kernel says who is asking."""
