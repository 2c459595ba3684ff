"""The databases: which one an engine is connected to, and what it can do."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.dialects.base import Dialect, Key
from claimjobs.dialects.lexis import Lexis
from claimjobs.dialects.mysql.dialect import MariaDB, MySQL
from claimjobs.dialects.postgres.dialect import Postgres
from claimjobs.dialects.sessions import Listener, Lock

DIALECTS: dict[str, type[Dialect]] = {"postgresql": Postgres, "mysql": MySQL, "mariadb": MariaDB}
DRIVERS = {
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
}
"""The drivers for URLs that name none."""


def dialect_of(connection: sa.Connection) -> Dialect:
    """The dialect of the connected server (a `mysql` URL may lead to a MariaDB).

    Raises KeyError for a database that is not in `DIALECTS`.
    """
    found = connection.dialect
    name = "mariadb" if getattr(found, "is_mariadb", False) else found.name
    return DIALECTS[name](found.driver)


def dialect_named_by(bind: sa.Engine | sa.Connection) -> Dialect:
    """The dialect that the URL names, without a look at the server: a MariaDB behind a `mysql` URL counts as MySQL.

    Raises KeyError for a database that is not in `DIALECTS`.
    """
    return DIALECTS[bind.dialect.name]()


__all__ = [
    "DIALECTS",
    "DRIVERS",
    "Dialect",
    "Key",
    "Lexis",
    "Listener",
    "Lock",
    "dialect_named_by",
    "dialect_of",
]
