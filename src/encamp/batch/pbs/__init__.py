"""PBS-style commands, as Slurm's package of them offers."""
