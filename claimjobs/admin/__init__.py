"""Administration of a queue: stats, dead jobs, purge, pause, upgrades."""
