"""The SQLSTATE codes of Postgres, and the server's words where the driver has no code."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from claimjobs.dialects import error_codes as kinds
from claimjobs.dialects.error_codes import (
    FULL,
    INTERRUPTED,
    LOST,
    READ_ONLY,
    STALE_PLAN,
    UNAVAILABLE,
    ErrorCodes,
    said,
    says,
)

_LACKS_A_RIGHT: Final = "42501"

# libpq gives no SQLSTATE for a failure to connect, only words: its own, the server's or PgBouncer's.
_ACCESS_DENIED: Final = (
    "password authentication failed|no pg_hba.conf entry|no password supplied|permission denied"
    '|is not permitted to log in|is not currently accepting connections|role ".*" does not exist'
)
_CONNECT_PROBLEMS: Final = {
    kinds.NO_TRANSACTIONS: "transaction blocks not allowed in statement pooling mode",
    kinds.ACCESS_DENIED: _ACCESS_DENIED,
    kinds.NO_DATABASE: 'database ".*" does not exist',
    # The second words are for sslmode=disable.
    kinds.OTHER_PROTOCOL: "received invalid response to SSL negotiation|expected authentication request from server",
    kinds.TLS: "SSL|certificate",
    FULL: "too many clients|too many connections|remaining connection slots",
    # Of a server that `target_session_attrs` passes over.
    kinds.NO_WRITES: "session is read-only|server is in hot standby mode",
}


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
        **dict.fromkeys(("57P03", "08001", "08004"), UNAVAILABLE),
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
    # fmt: on
    # 22P02 is a default that its type does not have: an ENUM of that name exists with other values.
    bad_name = frozenset({"42P07", "42602", "42710", "42622", "3F000", "22P02"})
    duplicate = frozenset({"23505"})

    def code(self, error: BaseException) -> Any:
        return getattr(getattr(error, "orig", None) or error, "sqlstate", None)

    def timed_out(self, error: BaseException) -> bool:
        # Every interruption has this code, whoever caused it.
        return self.code(error) == "57014" and says(error, ["statement timeout", "transaction timeout"])

    def is_stale_plan(self, error: BaseException) -> bool:
        # "Cached plan must not change result type": the server's words are in its language, its function is not.
        return self.code(error) == "0A000" and _detail(error, "source_function") == "RevalidateCachedQuery"

    def connect_problem(self, error: BaseException) -> str:
        # psycopg gives bytes for texts of a database whose encoding is SQL_ASCII, also for the server's version.
        if isinstance(error, TypeError) and "bytes-like object" in str(error):
            return kinds.NO_ENCODING
        if self.timed_out(error):  # a statement that the driver sends on a new connection
            return kinds.TIMED_OUT
        found = (kind for kind, words in _CONNECT_PROBLEMS.items() if re.search(words, said(error)))
        return next(found, UNAVAILABLE)

    def refuses_account(self, error: BaseException) -> bool:
        return re.search(_ACCESS_DENIED, said(error)) is not None

    def refuses_row(self, error: BaseException) -> bool:
        # By class: 22 data exception, 23 integrity constraint, 44 view with check option, P0 raised by a trigger
        # (P0001), 27 refused by one, 38 and 39 by a function in another language.
        if self.code(error) == _LACKS_A_RIGHT:  # also of a row that the policy of its table refuses
            return says(error, ["row-level security policy"])
        return str(self.code(error))[:2] in {"22", "23", "27", "38", "39", "44", "P0"}

    def denied_table(self, error: BaseException) -> str | None:
        found = re.search(r"permission denied for (?:table|relation|view) (.+)", said(error))
        return found[1].strip() if found and self.code(error) == _LACKS_A_RIGHT else None

    def missing_name(self, error: BaseException) -> str | None:
        found = re.search(r'"(?:[^"]*\.)?([^".]+)"', said(error))
        return found[1] if found else None

    def refusing_index(self, error: BaseException, table: str | None = None) -> str | None:
        is_ours = table is None or _detail(error, "table_name") == table
        return _detail(error, "constraint_name") if is_ours else None


def _detail(error: BaseException, name: str) -> str | None:
    return getattr(getattr(getattr(error, "orig", None), "diag", None), name, None)
