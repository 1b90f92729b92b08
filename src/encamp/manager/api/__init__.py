"""The manager's door for HTTP: the same questions as at the other door, with tokens for names."""
