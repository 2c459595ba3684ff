"""Postgres 13 and later: what differs from the portable base, and why."""

from __future__ import annotations

from typing import Any, ClassVar

import sqlalchemy as sa

from claimjobs.dialects.base import Dialect


class Postgres(Dialect):
    title: ClassVar[str] = "Postgres"
    # SKIP LOCKED came with 9.5, MATERIALIZED with 12; 13 is the oldest that is tested.
    oldest: ClassVar[tuple[int, ...]] = (13,)

    claims_in_one_statement: ClassVar[bool] = True
    returns_what_it_writes: ClassVar[bool] = True

    transient: ClassVar[dict[Any, str]] = {
        "40P01": "deadlock",
        "55P03": "lock timeout",
        "40001": "serialization",
    }
    missing_table: ClassVar[frozenset[Any]] = frozenset({"42P01"})
    # Class 42 is "syntax error or access rule violation"; 22 and 0A: an operand or a feature that cannot be.
    bad_predicate: ClassVar[frozenset[Any]] = frozenset(
        {"42601", "42703", "42702", "42883", "42804", "42P01", "42803", "42846", "22P02", "22007", "0A000"}
    )
    # Class 22 is "data exception", 23 "integrity constraint violation".
    bad_row: ClassVar[frozenset[Any]] = frozenset(
        {
            "22001",
            "22003",
            "22007",
            "22008",
            "22021",
            "22P02",
            "22P05",
            "23502",
            "23503",
            "23505",
            "23514",
            "23P01",
            "42804",
        }
    )

    def error_code(self, error: BaseException) -> Any:
        original = getattr(error, "orig", None) or error
        return getattr(original, "sqlstate", None)

    def refused(self, error: BaseException) -> bool:
        # libpq gives no SQLSTATE for a connection that was never made, only the server's words.
        words = (
            "password authentication failed",
            "no pg_hba.conf entry",
            "no password supplied",
            "permission denied",
        )
        return _says(error, *words) or (_says(error, 'role "') and _says(error, "does not exist"))

    def no_such_database(self, error: BaseException) -> bool:
        return _says(error, 'database "') and _says(error, '" does not exist') and not _says(error, 'role "')

    def later(self, now: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return now + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds, type_=sa.Interval)


class PortablePostgres(Postgres):
    """Postgres through the portable statements: three round trips a claim instead of one.

    The conformance suite runs it, so that the portable base is proven on more than one family of databases.
    """

    claims_in_one_statement: ClassVar[bool] = False
    returns_what_it_writes: ClassVar[bool] = False


def _says(error: BaseException, *words: str) -> bool:
    return any(word in str(getattr(error, "orig", None) or error) for word in words)
