"""MySQL 8.0.13 and later, and MariaDB 10.6 and later (InnoDB): what differs from the portable base, and why."""

from __future__ import annotations

from claimjobs.dialects.mysql.dialect import MariaDB, MySQL

__all__ = ["MariaDB", "MySQL"]
