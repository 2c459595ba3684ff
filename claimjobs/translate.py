"""The database's errors in our words, where our words say more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.errors import BadPredicate


@contextmanager
def predicate_errors(dialect: Dialect) -> Iterator[None]:
    """Raise BadPredicate for an error that only a `where` or an `order_by` can have caused."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if dialect.error_code(error) in dialect.bad_predicate:
            raise BadPredicate(reason(error)) from error
        raise


def reason(error: BaseException) -> str:
    """What the server said, in one line, without the statement."""
    original = getattr(error, "orig", None) or error
    said = original.args[-1] if original.args else original
    return " ".join(str(said).split())
