"""Several hosts in a URL. No driver of MySQL knows more than one, so we choose the first that takes writes.

A primary that is demoted keeps its sessions, and answers what is read as it was then. (A Postgres ends them all.)
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any, Final
from urllib.parse import urlsplit

import sqlalchemy as sa

from claimjobs.dialects.mysql.errors import NO_WRITES, UNREACHABLE, MySQLErrors

_READ_ONLY: Final = "SELECT @@global.read_only, @@global.innodb_read_only"
"""`super_read_only` switches `read_only` on, too. A later MariaDB has words for these values."""
_NO: Final = (0, "0", "OFF")
_MEMBERS: Final = "SELECT member_state FROM performance_schema.replication_group_members"
_UNREACHABLE_MEMBER: Final = "UNREACHABLE"
_GALERA: Final = "SHOW GLOBAL VARIABLES WHERE variable_name = 'wsrep_on' AND value = 'ON'"
_READY: Final = "SHOW GLOBAL STATUS LIKE 'wsrep_ready'"
"""A member of a Galera cluster answers these also if it is cut off."""
FRESH: Final = 1.0
"""Seconds for which a pooled connection is not asked again whether its server takes writes."""
_ASKED: Final = "claimjobs_asked_for_writes"
"""The key of a connection's `info` with the time when it was asked."""
BALANCE: Final = "load_balance_hosts"
"""The option of a URL, with libpq's name and values: `random` or `disable`."""


class Hosts:
    """The hosts in the query of a URL (`?host=a:3306&host=b:3306`). Each attempt to connect tries them in turn."""

    def __init__(self, url: sa.URL) -> None:
        """Raises ValueError or TypeError."""
        named = url.query["host"]
        parts = [urlsplit(f"//{host}") for host in ((named,) if isinstance(named, str) else named)]
        if not all(part.hostname for part in parts):
            raise ValueError("one of its hosts is empty")
        balance = url.query.get(BALANCE, "disable")
        if balance not in {"random", "disable"}:
            raise ValueError(f"{BALANCE} is {balance!r}: choose random or disable")
        given: Any = url.port or url.query.get("port", 3306)
        port = int(given)
        self._addresses = [{"host": part.hostname, "port": part.port or port} for part in parts]
        self._balances = balance == "random"
        self.chooses = len(self._addresses) > 1
        """One host alone may be a replica from which candidates are read."""

    def connect(self, dialect: Any, _record: Any, arguments: Any, options: dict[str, Any]) -> Any:
        """A connection of the driver to the first host that takes writes. Raises the driver's error if none does."""
        driver, failures = dialect.loaded_dbapi, []
        given = {name: value for name, value in options.items() if name != BALANCE}
        addresses = random.sample(self._addresses, len(self._addresses)) if self._balances else self._addresses
        for address in addresses:
            try:
                connection = dialect.connect(*arguments, **{**given, **address})
            except driver.Error as error:
                if MySQLErrors().broken_kind(error) is None:
                    raise  # a wrong password is wrong on every host
                failures.append(str(error.args[-1]))
                continue
            if not self.chooses or (_takes_writes(connection) and not _is_cut_off(connection)):
                return connection
            connection.close()
            failures.append(f"{address['host']}:{address['port']} {NO_WRITES}")
        raise driver.OperationalError(UNREACHABLE, "; ".join(failures))

    def leave_if_demoted(self, driver_connection: Any, record: Any, _proxy: Any) -> None:
        """Let the pool replace all connections to a server that takes writes no more, before one is used."""
        now = time.monotonic()
        if now - record.info.get(_ASKED, now - FRESH) < FRESH:
            return
        if not _takes_writes(driver_connection):
            raise sa.exc.InvalidatePoolError
        record.info[_ASKED] = now


def _takes_writes(driver_connection: Any) -> bool:
    """Whether it is a primary, for every account: also for one that may write on a read-only server."""
    try:
        [values] = _rows(driver_connection, _READ_ONLY)
    except Exception as error:
        if MySQLErrors().broken_kind(error) is None:
            raise
        return False
    return all(value in _NO for value in values)


def _is_cut_off(driver_connection: Any) -> bool:
    """Whether it is a member of a cluster or a group that sees no majority. One of a group takes writes, and no commit
    ends.

    False if the account may not ask, or the server knows no groups. True if the connection is lost meanwhile.
    """
    try:
        is_galera = _rows(driver_connection, _GALERA)  # any other MariaDB server is never ready
        if is_galera and any(value != "ON" for _, value in _rows(driver_connection, _READY)):
            return True
        states = [state for (state,) in _rows(driver_connection, _MEMBERS)]
    except Exception as error:
        if MySQLErrors().code(error) is None:
            raise
        return MySQLErrors().broken_kind(error) is not None
    return 2 * states.count(_UNREACHABLE_MEMBER) >= len(states) > 0


def _rows(driver_connection: Any, query: str) -> Any:
    with contextlib.closing(driver_connection.cursor()) as cursor:
        cursor.execute(query)
        return cursor.fetchall()
