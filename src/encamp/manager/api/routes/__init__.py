"""What can be called, by what it is about."""
