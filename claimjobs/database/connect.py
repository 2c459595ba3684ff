"""Makes a working connection from a URL, or raises an error that says what to change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from claimjobs.database.error_translation import raised_as_sqlalchemy_does, reason
from claimjobs.database.masking import is_secret, masked
from claimjobs.database.transactions import commits_by_itself
from claimjobs.dialects import DIALECTS, DRIVERS, Dialect, dialect_named_by, dialect_of
from claimjobs.dialects import error_codes as kinds
from claimjobs.dialects.error_codes import READ_ONLY
from claimjobs.errors import (
    AccessDenied,
    ClaimjobsError,
    ConnectionFailed,
    ServerUnfit,
    ServerUnreachable,
    StatementTimedOut,
    UnknownDatabase,
    setting_unfit,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Bind: TypeAlias = "str | sa.URL | sa.Engine | AsyncEngine"

CONNECT_SECONDS = 5
"""How long connecting may take, including the server's greeting, if the URL does not say."""

_RENAMED = {"passwd": "password"}
"""Options whose names drivers have deprecated, and their new names."""
_COERCED = ("ssl_key",)
"""Options that SQLAlchemy converts for the driver: this one is a path."""

PACKAGES = {"MySQLdb": "mysqlclient"}
"""The packages of drivers, if they have another name than the module."""

UNUSABLE = (TypeError, ValueError, LookupError, AttributeError, OverflowError, OSError)
"""What drivers and SQLAlchemy raise for options of a URL that they do not know or cannot use."""

FRESH_SECONDS = 1.0
"""Seconds for which a connection needs no ping: no firewall drops it, and no server times it out, so soon."""

_USED = "claimjobs_used"
"""The key of a connection's `info` with the time of its last use."""

_CHECKED = "claimjobs_checked"
"""The key of a connection's `info` that says that it was checked for a pooler."""

EXAMPLES = "mysql://user:password@host/database or postgresql://user:password@host/database"
SEVERAL_HOSTS = "postgresql://user:password@/database?host=first:5432&host=second:5432"


def engine_of(bind: Bind, *, connect_seconds: int = CONNECT_SECONDS) -> sa.Engine:
    """An engine for a URL (an engine is returned as it is). Opens no connection. An AsyncEngine gives its URL: the
    engine has a driver that needs no event loop, and none of the arguments that are not in the URL.

    `connect_seconds`: for an attempt to connect to one address, unless the URL says another number.
    Raises UnknownDatabase.
    """
    given: Any = bind
    if (of_asyncio := getattr(bind, "sync_engine", None)) is not None:  # its driver needs a running event loop
        named: sa.URL = of_asyncio.url
        given = named.set(drivername=DRIVERS.get(named.get_backend_name(), named.drivername))
    if isinstance(given, sa.Engine):
        require_known(given.dialect.name, given.dialect.driver + (" (async)" if given.dialect.is_async else ""))
        return given
    url = parse(given)
    require_known(url.get_backend_name(), url.drivername.partition("+")[2])
    dialect = DIALECTS[url.get_backend_name()]()
    if misread := dialect.sessions.misread_option(url.get_driver_name(), url.query):
        option, step = misread
        raise UnknownDatabase(f"{shown(url)}: in a URL the option {option!r} does not mean what it says: {step}")
    limits = dialect.sessions.connect_arguments(url.get_driver_name(), connect_seconds)
    wanted = {name: value for name, value in limits.items() if name not in url.query}
    # An engine shows the query of its URL: so its secrets are passed as arguments of the driver.
    secrets = {name: value for name, value in url.query.items() if is_secret(name) and name not in _COERCED}
    arguments = {_RENAMED.get(name, name): value for name, value in secrets.items()}
    try:
        engine = sa.create_engine(url.difference_update_query(secrets), connect_args={**wanted, **arguments})
        _watch(engine, dialect)
        dialect.sessions.prepare(engine)
    except (sa.exc.ArgumentError, *UNUSABLE) as error:
        raise UnknownDatabase(_unusable(url, error)) from error
    except ModuleNotFoundError as error:
        raise UnknownDatabase(
            f"the driver of {url.drivername!r} is not installed ({error}): pip install "
            f"{PACKAGES.get(error.name or '', error.name)}, or leave the driver out of the URL"
        ) from error
    return engine


def _watch(engine: sa.Engine, dialect: Dialect) -> None:
    """Make the pool replace connections that ended while they were in it, and all that are as old: a producer has no
    heartbeat that would find a broken one. Also when a server refuses to write because it is read-only.

    `pool_pre_ping` pings with a round trip before each use. But a server that ends a session sends a message at once.
    So a connection that was used a moment ago, and has received nothing since, is not pinged.
    """

    def used(_driver_connection: Any, record: Any) -> None:
        record.info[_USED] = time.monotonic()

    def wanted(driver_connection: Any, record: Any, _proxy: Any) -> None:
        rested = time.monotonic() - record.info.get(_USED, -FRESH_SECONDS)
        if rested < FRESH_SECONDS and dialect.sessions.is_quiet(driver_connection):
            return
        try:
            engine.dialect.do_ping(driver_connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error

    def refused(context: sa.engine.ExceptionContext) -> None:
        # It may be the primary of before a failover, which still answers. New connections lead to the one of now.
        if dialect.errors.broken_kind(context.original_exception) == READ_ONLY:
            context.is_disconnect = True

    sa.event.listen(engine, "handle_error", refused)
    sa.event.listen(engine, "connect", used)
    sa.event.listen(engine, "checkin", used)
    sa.event.listen(engine, "checkout", wanted)


# --- URLs ----------------------------------------------------------------------------------------------------


def parse(url: str | sa.URL) -> sa.URL:
    """The URL with a driver in it. Raises UnknownDatabase if it cannot be read; never shows a password.

    White space around it, such as the newline at the end of a file that it was read from, is no part of it.
    """
    try:
        parsed = sa.make_url(url.strip() if isinstance(url, str) else url)
    except (sa.exc.ArgumentError, ValueError):
        several = f"; for several hosts: {SEVERAL_HOSTS}" if "," in str(url) else ""
        raise UnknownDatabase(f"the database URL cannot be read: give one such as {EXAMPLES}{several}") from None
    if "@" in f"{parsed.host}{parsed.database}":  # then a part of the password counts as the host, and would be shown
        raise UnknownDatabase("the database URL cannot be read: in a user or a password write @ as %40 and / as %2F")
    return parsed.set(drivername=DRIVERS.get(parsed.drivername, parsed.drivername))


def _unusable(url: sa.URL, error: Exception) -> str:
    cause = masked(reason(error), [url.render_as_string(hide_password=False)])
    options = f"its options ({', '.join(sorted(url.query))})" if url.query else "its parts"
    return (
        f"{shown(url)}: the driver cannot use this URL ({cause}): check {options}, and that it names the right server"
    )


def shown(url: sa.URL) -> str:
    """A URL without its secrets, for messages."""
    return masked(url.render_as_string(hide_password=True))


def require_known(name: str, driver: str | None = None) -> None:
    """Raises UnknownDatabase for another database than ours, or another driver; None: any one."""
    if name not in DIALECTS:
        raise UnknownDatabase(
            f"claimjobs does not know {name!r}, only {', '.join(sorted(DIALECTS))}: give a URL such as {EXAMPLES}"
        )
    known = DIALECTS[name].drivers
    if driver is not None and driver not in known:
        raise UnknownDatabase(
            f"claimjobs does not work with the driver {driver!r}, only with {' or '.join(known)}: "
            f"write {' or '.join(f'{name}+{other}://...' for other in known)}, or leave the driver out: {EXAMPLES}"
        )


# --- connections ---------------------------------------------------------------------------------------------


def dialect_for(engine: sa.Engine) -> Dialect:
    """The dialect of the server behind an engine. It opens a connection.

    Raises ConnectionFailed if it cannot be reached, ServerUnfit if it lacks what a claim needs.
    """
    with connected(engine) as connection:
        dialect = dialect_of(connection)
        found = tuple(part for part in connection.dialect.server_version_info or () if isinstance(part, int))
    if found and found < dialect.oldest:
        raise ServerUnfit(
            f"{dialect.title} {dotted(found)} cannot claim with SKIP LOCKED: upgrade the server to {dialect.title} "
            f"{dotted(dialect.oldest)} or later"
        )
    return dialect


_INSPECTORS: WeakKeyDictionary[sa.Connection, sa.Inspector] = WeakKeyDictionary()


@contextmanager
def inspected_once(connection: sa.Connection) -> Iterator[None]:
    """In this block `inspector_of` remembers what it was told: nothing in it changes a table.

    Half of the statements that open a queue asked the same again (56 on Postgres with the first claim, and 40 so).
    """
    _INSPECTORS[connection] = sa.inspect(connection)
    try:
        yield
    finally:
        del _INSPECTORS[connection]


def inspector_of(connection: sa.Connection) -> sa.Inspector:
    """What tells of the tables of this connection's database."""
    return _INSPECTORS.get(connection) or sa.inspect(connection)


def dotted(version: tuple[int, ...]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


@contextmanager
def connected(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection for a `with` block, with transactions, also if those of the engine are in autocommit. Raises
    ConnectionFailed, and SettingUnfit for a statement that a setting of the session refuses."""
    connection = open_connection(engine)
    try:
        with raised_as_sqlalchemy_does(connection):
            if commits_by_itself(connection, unknown=False):
                connection.execution_options(isolation_level=dialect_named_by(engine).isolation)
            yield connection
    except (sa.exc.DBAPIError, NotImplementedError) as error:
        errors = dialect_named_by(engine).errors
        if errors.broken_kind(error) == READ_ONLY and not connection.closed:
            connection.invalidate(error)  # a pool of the user's, too, must not give it out again
        if found := errors.unfit_setting(error):
            raise setting_unfit(*found) from error
        raise
    finally:
        # If the connection is lost by now, the server rolls back what is not committed.
        with suppress(sa.exc.DBAPIError):
            connection.close()


def open_connection(engine: sa.Engine) -> sa.Connection:
    """A connection. Raises ConnectionFailed with the reason.

    Behind a pooler the driver prepares no statements on it. A prepared statement belongs to a session of the server,
    and the next transaction may have another session.
    """
    dialect = dialect_named_by(engine)
    try:
        connection = engine.connect()
    except sa.exc.TimeoutError as error:
        raise ClaimjobsError(
            f"no connection of the engine's pool was free in time ({' '.join(engine.pool.status().split())}): a Queue "
            'keeps one and needs a second one now and then, with hold="transaction" one for each open batch: raise '
            "pool_size or max_overflow of create_engine, or give the Queue an engine of its own"
        ) from error
    except (sa.exc.DBAPIError, sa.exc.InvalidRequestError, *UNUSABLE) as error:
        problem = dialect.errors.connect_problem(error)
        if problem == kinds.UNAVAILABLE and isinstance(error, sa.exc.InvalidRequestError):
            raise
        if problem == kinds.UNAVAILABLE and isinstance(error, UNUSABLE):
            raise UnknownDatabase(_unusable(engine.url, error)) from error
        why = masked(reason(error), [engine.url.render_as_string(hide_password=False)])
        if problem == kinds.TIMED_OUT:
            raise StatementTimedOut(why) from error
        kind, says = _PROBLEMS[problem]
        options = ", and the URL's options" if engine.url.query else ""
        says = says.format(why=why, title=dialect.title, options=options)
        raise kind(f"{shown(engine.url)}: {says}") from error
    except (AssertionError, NotImplementedError) as error:  # SQLAlchemy does not know the version that the server says
        raise ServerUnfit(
            f"{shown(engine.url)}: the server does not say that it is {dialect.title} ({reason(error)}): check the "
            "URL; docs/scaling.md says what other products that speak this protocol can do"
        ) from error
    if dialect.needs_database and not connection.dialect.default_schema_name:
        connection.close()
        raise UnknownDatabase(f"{shown(engine.url)} names no database: give a URL such as {EXAMPLES}")
    if _CHECKED not in connection.info and not engine.dialect.is_async:
        connection.info[_CHECKED] = True
        dialect.sessions.prepare_nothing_if_pooled(connection.connection.driver_connection)
    return connection


_PROBLEMS: Mapping[str, tuple[type[ClaimjobsError], str]] = {
    kinds.NO_TRANSACTIONS: (
        ConnectionFailed,
        "the pooler allows no transactions ({why}): set its pool mode to transaction or session for this database, or "
        "connect to the server itself",
    ),
    kinds.NO_DATABASE: (AccessDenied, "there is no such database ({why}): create it, or correct the URL"),
    kinds.ACCESS_DENIED: (AccessDenied, "the server refused ({why}): check user, password and their rights"),
    kinds.OTHER_PRODUCT: (
        UnknownDatabase,
        f"the URL leads to another database ({{why}}): give a URL such as {EXAMPLES}",
    ),
    kinds.NO_ENCODING: (
        UnknownDatabase,
        "texts come as bytes, because the database has no encoding: add client_encoding=utf8 to the URL",
    ),
    kinds.OTHER_PROTOCOL: (
        ServerUnreachable,
        "what answers there is no {title} server ({why}): check the port, and the URL's kind of database",
    ),
    kinds.TLS: (
        ServerUnreachable,
        "no encrypted connection ({why}): check the TLS options of the URL, and the authority and the host name of the "
        "server's certificate",
    ),
    kinds.FULL: (
        ServerUnreachable,
        "no further connection ({why}): raise that limit, or start fewer consumers: each has a connection of its own",
    ),
    kinds.NO_WRITES: (
        ServerUnreachable,
        "no server of this URL takes writes ({why}): wait until one is promoted, or add the primary to the URL",
    ),
    kinds.UNAVAILABLE: (
        ServerUnreachable,
        "no connection ({why}): check host and port, and that the server is running and is {title}{options}",
    ),
}
"""What a failure to connect raises: the class, what happened, and the next step."""
