"""The agent's meeting point: where clients meet what runs on the host."""
