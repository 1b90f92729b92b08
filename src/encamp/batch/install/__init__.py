"""Setting a batch system up for Encamp: what is to be changed, doing it, and undoing it exactly."""
