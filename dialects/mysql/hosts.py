"""Several hosts in a URL. No driver of MySQL knows more than one, so we choose the first that takes writes."""

from __future__ import annotations

import contextlib
from typing import Any, Final
from urllib.parse import urlsplit

import sqlalchemy as sa

from claimjobs.dialects.mysql.errors import NO_WRITES, UNREACHABLE, MySQLErrors

_READ_ONLY: Final = "SELECT @@global.read_only, @@global.innodb_read_only"
"""`super_read_only` switches `read_only` on, too. A later MariaDB has words for these values."""
_NO: Final = (0, "0", "OFF")


class Hosts:
    """The hosts of a URL, as HOST or HOST:PORT. Each attempt to connect tries them in their order."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        """Raises ValueError."""
        parts = [urlsplit(f"//{host}") for host in hosts]
        self._addresses = [{"host": part.hostname, "port": part.port or 3306} for part in parts]

    @classmethod
    def of(cls, url: sa.URL) -> Hosts | None:
        """The hosts in the query of a URL (`?host=a:3306&host=b:3306`); None: it has none there."""
        named = url.query.get("host", ())
        return cls((named,) if isinstance(named, str) else named) if named else None

    def connect(self, dialect: Any, _record: Any, arguments: Any, options: dict[str, Any]) -> Any:
        """A connection of the driver to the first host that takes writes. Raises the driver's error if none does."""
        driver, failures = dialect.loaded_dbapi, []
        for address in self._addresses:
            try:
                connection = dialect.connect(*arguments, **{**options, **address})
            except driver.Error as error:
                if MySQLErrors().broken_kind(error) is None:
                    raise  # a wrong password is wrong on every host
                failures.append(str(error.args[-1]))
                continue
            if _takes_writes(connection):
                return connection
            connection.close()
            failures.append(f"{address['host']}:{address['port']} {NO_WRITES}")
        raise driver.OperationalError(UNREACHABLE, "; ".join(failures))


def _takes_writes(driver_connection: Any) -> bool:
    """Whether it is a primary, for every account: also for one that may write on a read-only server."""
    with contextlib.closing(driver_connection.cursor()) as cursor:
        cursor.execute(_READ_ONLY)
        return all(value in _NO for value in cursor.fetchone())
