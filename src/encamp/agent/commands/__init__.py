"""Commands: what an agent can be told to do, and the processes that do it."""
