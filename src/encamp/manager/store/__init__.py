"""What the manager must not forget: commands, events, hosts, the triggers' log. In SQL."""
