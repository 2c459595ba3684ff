"""Errors of a `where` or an `order_by` that a user wrote."""

from __future__ import annotations

from claimjobs.errors.base import ClaimjobsError


class BadPredicate(ClaimjobsError):
    """A `where` or an `order_by` is not one whole SQL expression, or the database does not understand it."""


def not_understood(reason: str, *, is_order: bool = False) -> BadPredicate:
    """The error for a predicate, or an order, that the database does not understand."""
    if is_order:
        return BadPredicate(
            f"the database does not understand the order ({reason}): it is the name of a column, `-name` for the "
            "highest first, or SQL as after ORDER BY; check its columns and quotes"
        )
    return BadPredicate(
        f"the database does not understand the predicate ({reason}): it is SQL as after WHERE, for this table; check "
        "its columns and quotes"
    )
