"""The SQLSTATE codes of Postgres, and the server's words where the driver has no code."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from claimjobs.dialects.error_codes import FULL, INTERRUPTED, LOST, READ_ONLY, STALE_PLAN, ErrorCodes

_CHECKS_PLANS: Final = "RevalidateCachedQuery"
"""The server's function that refuses a prepared statement whose columns have changed."""

_RIGHT: Final = "42501"
"""The account lacks a right."""


class PostgresErrors(ErrorCodes):
    transient: ClassVar[dict[Any, str]] = {
        "40P01": "deadlock",
        "55P03": "lock timeout",
        "40001": "serialization",
        "57014": INTERRUPTED,
        "53100": "disk full",
        "53200": "out of memory",
        # Behind a pooler: it was prepared in another session, or another client prepared it in this session.
        "26000": STALE_PLAN,
        "42P05": STALE_PLAN,
    }
    broken: ClassVar[dict[Any, str]] = {
        **dict.fromkeys(("57P01", "57P02", "57P05", "25P03", "25P04", "08000", "08003", "08006", "08007"), LOST),
        **dict.fromkeys(("57P03", "08001", "08004"), "server unavailable"),
        "53300": FULL,
        "25006": READ_ONLY,
    }
    missing_table = frozenset({"42P01"})
    # A syntax error, an unknown function, a feature that is not supported.
    lacking = frozenset({"42601", "42883", "0A000"})
    # fmt: off
    # Class 42 is "syntax error or access rule violation"; 22 and 0A are an invalid operand and a missing feature.
    bad_predicate = frozenset(
        {
            "42601", "42703", "42702", "42883", "42804", "42P01", "42803", "42846", "42704", "42725", "42809",
            "42830", "42P02", "42P08", "42P09", "42P10", "42P18", "42P20", "42P21", "42P22", "42622", "428C9",
            "3F000", "21000", "22P02", "22007", "22008", "22003", "22012", "22011", "22019", "2201B", "2201E",
            "2201F", "2201W", "22021", "22023", "22024", "22025", "2202E", "2202H", "22030", "22032", "22033",
            "22034", "22035", "22036", "22037", "22038", "22039", "2203A", "2203B", "2203C", "2203D", "2203E",
            "2203F", "2203G", "0A000", "54001",
        }
    )
    # 22P02 is a default that its type does not have: an ENUM of that name exists with other values.
    bad_name = frozenset({"42P07", "42602", "42710", "42622", "3F000", "22P02"})
    # Class 22 is "data exception", 23 "integrity constraint violation".
    bad_row = frozenset(
        {
            "22001", "22003", "22007", "22008", "22021", "22P02", "22P05", "23502", "23503", "23505", "23514", "23P01",
            "42804",
        }
    )
    # fmt: on
    duplicate = frozenset({"23505"})

    def code(self, error: BaseException) -> Any:
        original = getattr(error, "orig", None) or error
        return getattr(original, "sqlstate", None)

    def timed_out(self, error: BaseException) -> bool:
        # Every interruption has this code, whoever caused it.
        return bool(self.code(error) == "57014" and _says(error, "statement timeout", "transaction timeout"))

    def is_stale_plan(self, error: BaseException) -> bool:
        # "Cached plan must not change result type": the server's words are in its language, its function is not.
        detail = getattr(getattr(error, "orig", None), "diag", None)
        return bool(self.code(error) == "0A000" and getattr(detail, "source_function", "") == _CHECKS_PLANS)

    def refuses_row(self, error: BaseException) -> bool:
        # By class: 22 data exception, 23 integrity constraint, 44 view with check option, P0 raised by a trigger
        # (P0001), 27 refused by one, 38 and 39 by a function in another language.
        if self.code(error) == _RIGHT:  # also of a row that the policy of its table refuses
            return _says(error, "row-level security policy")
        return str(self.code(error))[:2] in {"22", "23", "27", "38", "39", "44", "P0"}

    def denied_table(self, error: BaseException) -> str | None:
        found = re.search(r"permission denied for (?:table|relation|view) (.+)", str(getattr(error, "orig", error)))
        return found[1].strip() if found and self.code(error) == _RIGHT else None

    def refusing_index(self, error: BaseException, table: str | None = None) -> str | None:
        detail = getattr(getattr(error, "orig", None), "diag", None)
        is_ours = table is None or getattr(detail, "table_name", None) == table
        return getattr(detail, "constraint_name", None) if is_ours else None

    def missing_name(self, error: BaseException) -> str | None:
        found = re.search(r'"(?:[^"]*\.)?([^".]+)"', str(getattr(error, "orig", error)))
        return found[1] if found else None

    # libpq gives no SQLSTATE for a failure to connect, only the server's words.

    def refuses_account(self, error: BaseException) -> bool:
        words = (
            "password authentication failed",
            "no pg_hba.conf entry",
            "no password supplied",
            "permission denied",
            "is not permitted to log in",
            "is not currently accepting connections",
        )
        return _says(error, *words) or (_says(error, 'role "') and _says(error, "does not exist"))

    def lacks_encoding(self, error: BaseException) -> bool:
        # psycopg gives bytes for texts of a database whose encoding is SQL_ASCII, also for the server's version.
        return isinstance(error, TypeError) and "bytes-like object" in str(error)

    def connect_kind(self, error: BaseException) -> str:
        full = _says(error, "too many clients", "too many connections", "remaining connection slots")
        return FULL if full else "server unavailable"

    def no_such_database(self, error: BaseException) -> bool:
        return _says(error, 'database "') and _says(error, '" does not exist') and not _says(error, 'role "')

    def is_other_protocol(self, error: BaseException) -> bool:
        # libpq's words for an answer that no Postgres gives; the second ones with sslmode=disable.
        return _says(
            error, "received invalid response to SSL negotiation", "expected authentication request from server"
        )

    def takes_no_writes(self, error: BaseException) -> bool:
        # libpq's words for a server that `target_session_attrs` passes over.
        return _says(error, "session is read-only", "server is in hot standby mode")

    def forbids_transactions(self, error: BaseException) -> bool:
        return _says(error, "transaction blocks not allowed in statement pooling mode")  # PgBouncer's words


def _says(error: BaseException, *words: str) -> bool:
    return any(word in str(getattr(error, "orig", None) or error) for word in words)
