"""The database's errors in our words, where our words say more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from claimjobs.dialects import DIALECTS, Dialect
from claimjobs.errors import (
    BadOrder,
    BadPredicate,
    ClaimRefused,
    ClaimsMissing,
    NothingDone,
    OutcomeRefused,
    SettingUnfit,
    SettleFailed,
    StillDue,
    TableMissing,
    UnfitTable,
)

LASTING = (
    *(BadPredicate, ClaimRefused, NothingDone, OutcomeRefused),
    *(SettingUnfit, SettleFailed, StillDue, UnfitTable),
)
"""Errors of ours that every further try would meet again."""

REFUSALS = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.NotSupportedError)
"""What a driver raises where the statement or its values are wrong, not the circumstances."""


@contextmanager
def predicate_errors(dialect: Dialect, is_order: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raise BadPredicate for an error that only a `where` or an `order_by` can have caused; BadOrder if `is_order`."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if dialect.errors.code(error) in dialect.errors.bad_predicate:
            raise (BadOrder if is_order() else BadPredicate)(reason(error)) from error
        raise


def passes(error: BaseException, engine: sa.Engine) -> bool:
    """Whether this is a deadlock, a lost connection or the like: the next try has nothing to do with it."""
    dialect = DIALECTS[engine.dialect.name]()
    return (dialect.errors.transient_kind(error) or dialect.errors.broken_kind(error)) is not None


def lasting(error: BaseException, engine: sa.Engine) -> str | None:
    """What kind of error this is, where every further try would meet it again; None: it may pass."""
    if isinstance(error, LASTING):
        return str(error).partition(" DETAIL:")[0]  # the values of the row, some of them instants, differ each time
    dialect = DIALECTS[engine.dialect.name]()
    code = dialect.errors.code(error)
    refused = code in dialect.errors.bad_row | dialect.errors.bad_predicate | dialect.errors.missing_table
    # Drivers do not agree on which is which: what a constraint of MySQL refuses is an OperationalError, too.
    return f"{type(error).__name__} {code}" if refused or isinstance(error, REFUSALS) else None


def reason(error: BaseException) -> str:
    """What the server said, in one line, without the statement."""
    original = getattr(error, "orig", None) or error
    said = original.args[-1] if original.args else original
    return " ".join(str(said).split())


@dataclass(frozen=True)
class TablesInUse:
    """The tables that the statements of a queue are about."""

    dialect: Dialect
    tables: Sequence[sa.Table]
    side_car: tuple[sa.Table, str] | None = None
    """The table of claims, and the name of the table that they are about."""

    def missing(self, error: BaseException) -> TableMissing | None:
        """What an error says of a table in use that is not there any more; None: it is about something else."""
        if (
            not isinstance(error, sa.exc.DBAPIError)
            or self.dialect.errors.code(error) not in self.dialect.errors.missing_table
        ):
            return None
        name = self.dialect.errors.missing_name(error)
        if self.side_car is not None and name == self.side_car[0].name:
            return ClaimsMissing(self.side_car[0].fullname, self.side_car[1])
        names = {table.name: table.fullname for table in self.tables}
        return TableMissing(names[name]) if name in names else None

    @contextmanager
    def naming_what_is_missing(self) -> Iterator[None]:
        """Raise TableMissing for an error that says so of a table in use."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            if missing := self.missing(error):
                raise missing from error
            raise
