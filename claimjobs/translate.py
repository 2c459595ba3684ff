"""The database's errors in our words, where our words say more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from claimjobs.dialects import DIALECTS, Dialect
from claimjobs.errors import (
    BadOrder,
    BadPredicate,
    NothingDone,
    OutcomeRefused,
    SettleFailed,
    StillDue,
    UnfitTable,
)

REFUSALS = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.NotSupportedError)
"""What a driver raises where the statement or its values are wrong, not the circumstances."""


@contextmanager
def predicate_errors(dialect: Dialect, is_order: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raise BadPredicate for an error that only a `where` or an `order_by` can have caused; BadOrder if `is_order`."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if dialect.error_code(error) in dialect.bad_predicate:
            raise (BadOrder if is_order() else BadPredicate)(reason(error)) from error
        raise


def passes(error: BaseException, engine: sa.Engine) -> bool:
    """Whether this is a deadlock, a lost connection or the like: the next try has nothing to do with it."""
    dialect = DIALECTS[engine.dialect.name]()
    return (dialect.transient_kind(error) or dialect.broken_kind(error)) is not None


def lasting(error: BaseException, engine: sa.Engine) -> str | None:
    """What kind of error this is, where every further try would meet it again; None: it may pass."""
    if isinstance(error, (BadPredicate, NothingDone, OutcomeRefused, SettleFailed, StillDue, UnfitTable)):
        return str(error)
    dialect = DIALECTS[engine.dialect.name]()
    code = dialect.error_code(error)
    refused = code in dialect.bad_row | dialect.bad_predicate | dialect.missing_table
    # Drivers do not agree on which is which: what a constraint of MySQL refuses is an OperationalError, too.
    return f"{type(error).__name__} {code}" if refused or isinstance(error, REFUSALS) else None


def reason(error: BaseException) -> str:
    """What the server said, in one line, without the statement."""
    original = getattr(error, "orig", None) or error
    said = original.args[-1] if original.args else original
    return " ".join(str(said).split())
