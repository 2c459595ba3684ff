"""Errors of a `where` or an `order_by` that a user wrote."""

from __future__ import annotations

from claimjobs.errors.base import ClaimjobsError


class BadPredicate(ClaimjobsError):
    """The database does not understand a `where` or an `order_by`."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the database does not understand the predicate ({reason}): it is SQL as after WHERE, for this table; "
            "check its columns and quotes"
        )


class BadOrder(BadPredicate):
    """The database does not understand an `order_by`."""

    def __init__(self, reason: str) -> None:
        ClaimjobsError.__init__(
            self,
            f"the database does not understand the order ({reason}): it is the name of a column, `-name` for the "
            "highest first, or SQL as after ORDER BY; check its columns and quotes",
        )


class NotOneExpression(BadPredicate):
    """A text is not one whole SQL expression, and would change the statement around it."""

    def __init__(self, what: str, flaw: str) -> None:
        ClaimjobsError.__init__(
            self, f"the {what} is not one whole expression ({flaw}): check its quotes, comments and parentheses"
        )
