"""The bus between a manager and its agents: in process for one machine, NATS for a site."""
