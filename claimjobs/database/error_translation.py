"""Translates errors of the database into errors of claimjobs that say more."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect, dialect_named_by
from claimjobs.dialects.sessions import Sessions
from claimjobs.errors import (
    BadHandler,
    BadPredicate,
    ClaimRefused,
    KeyUnfit,
    NothingDone,
    OutcomeRefused,
    ReadOnly,
    ServerUnreachable,
    SettingUnfit,
    SettleFailed,
    StillDue,
    TableMissing,
    UnfitTable,
    claims_missing,
    not_understood,
)
from claimjobs.key_text import text_of, visible

LASTING = (
    *(BadPredicate, ClaimRefused, NothingDone, OutcomeRefused),
    *(SettingUnfit, SettleFailed, BadHandler, StillDue, UnfitTable),
)
"""Errors of claimjobs whose message identifies them: of two tables, or two settings, each counts by itself."""


@contextmanager
def predicate_errors(dialect: Dialect, is_order: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raise BadPredicate for an error that only a `where` or an `order_by` can have caused. `is_order` tells which."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if dialect.errors.code(error) in dialect.errors.bad_predicate and not dialect.errors.is_stale_plan(error):
            raise not_understood(reason(error), is_order=is_order()) from error
        raise


def lasting(error: Exception, engine: sa.Engine) -> str | None:
    """A text that identifies an error which every further attempt may meet again; None: an outage or a conflict."""
    if isinstance(error, LASTING):
        return text_of(error).partition(" DETAIL:")[0]  # the values of the row differ each time
    if isinstance(error, (ReadOnly, ServerUnreachable)):
        return None
    if not isinstance(error, sa.exc.DBAPIError):
        return type(error).__name__
    errors = dialect_named_by(engine).errors
    return f"{type(error).__name__} {errors.code(error)}" if errors.may_be_of_a_row(error) else None


UNSENDABLE: Final = (TypeError, ValueError, OverflowError)
"""What drivers raise for a value that they cannot send."""


def reason(error: BaseException) -> str:
    """The server's message in one line, without the statement. Of a user's exception: what it says.

    It may quote values of a row: so it is made visible.
    """
    said: object = error
    with contextlib.suppress(Exception):  # a user's class may have other attributes of these names
        original = getattr(error, "orig", None)
        original = error if original is None else original
        said = original.args[-1] if original.args else original
    return visible(" ".join(text_of(said).split()))


@dataclass(frozen=True)
class TablesInUse:
    """The tables that the statements of a queue use."""

    dialect: Dialect
    tables: Sequence[sa.Table]
    outcomes: sa.Table
    """The side-car, or the user's table."""
    depend_on_zone: bool = False
    """Whether a statement on the user's table depends on the time zone of the session."""

    @property
    def name(self) -> str:
        """The name of the user's table."""
        return self.tables[0].fullname

    def missing(self, error: BaseException) -> UnfitTable | None:
        """The TableMissing for an error that says that a table in use is missing; KeyUnfit for an index; None for
        any other error.
        """
        if not isinstance(error, sa.exc.DBAPIError):
            return None
        code, errors = self.dialect.errors.code(error), self.dialect.errors
        if code in errors.missing_index:
            return KeyUnfit(
                f"the index of table {self.name!r} by which rows are found was dropped, renamed or hidden "
                f"({reason(error)}): check the table, and make the index again, or show it; if another one begins with "
                "the key, start again"
            )
        if code not in errors.missing_table:
            return None
        name = self.dialect.errors.missing_name(error)
        names = {table.name: table.fullname for table in self.tables}
        if name in names:
            return TableMissing(names[name])
        return claims_missing(self.outcomes.fullname, self.name) if name == self.outcomes.name else None

    @contextmanager
    def naming_what_is_missing(self) -> Iterator[None]:
        """Raise TableMissing, or KeyUnfit, for an error that says that a table or an index in use is missing."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            if missing := self.missing(error):
                raise missing from error
            raise


@contextmanager
def raised_as_sqlalchemy_does(connection: sa.Connection) -> Iterator[None]:
    """Raise sqlalchemy.exc.DBAPIError for an error of the driver in the block, and invalidate a lost connection.

    SQLAlchemy does so for statements, but not if the driver refuses another isolation level, because it knows already
    that the connection is lost. Nothing would be tried again after that error.
    """
    try:
        yield
    except connection.dialect.loaded_dbapi.Error as error:
        connection._handle_dbapi_exception(error, None, None, None, None)


@contextmanager
def not_longer_than(
    seconds: float, sessions: Sessions, connection: sa.Connection, driver_connection: Any = None
) -> Iterator[None]:
    """Break the connection if the block takes longer, and raise ServerUnreachable: the host may have vanished.

    `driver_connection`: what is broken; None: that of the connection.
    """
    waits_on = driver_connection or connection.connection.dbapi_connection
    timer = threading.Timer(seconds, sessions.break_connection, [waits_on])
    timer.daemon = True
    began = time.monotonic()
    timer.start()
    try:
        with raised_as_sqlalchemy_does(connection):
            yield
    except sa.exc.DBAPIError as error:
        if time.monotonic() - began < seconds:
            raise
        raise ServerUnreachable(f"no answer within {seconds:g} s") from error  # the driver says that the server left
    finally:
        timer.cancel()
