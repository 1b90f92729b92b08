"""The command line: a thin door to the agent's library."""
