"""A simulated site: clock, hosts, workload, faults; around the core that decides for real sites."""
