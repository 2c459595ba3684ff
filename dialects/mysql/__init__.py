"""MySQL 8.0.13 and later, and MariaDB 10.6 and later (InnoDB): what differs from the portable base, and why."""
