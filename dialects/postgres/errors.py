"""The SQLSTATE codes of Postgres, and the server's words where the driver has no code."""

from __future__ import annotations

from collections.abc import Mapping
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
    Signs,
    words_of,
)

_LACKS_A_RIGHT: Final = "42501"


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

    # By class: 22 data exception, 23 integrity constraint, 44 view with check option, P0 raised by a trigger (P0001),
    # 27 refused by one, 38 and 39 by a function in another language.
    bad_row = frozenset({"22", "23", "27", "38", "39", "44", "P0"})
    # libpq gives no SQLSTATE for a failure to connect, only words: its own, the server's or PgBouncer's.
    connect_problems: ClassVar[Mapping[str, Signs]] = {
        # psycopg gives bytes for texts of a database whose encoding is SQL_ASCII, also for the server's version.
        kinds.NO_ENCODING: Signs(words="bytes-like object"),
        # Every interruption has this code, whoever caused it.
        kinds.TIMED_OUT: Signs(frozenset({"57014"}), "statement timeout|transaction timeout"),
        kinds.NO_TRANSACTIONS: Signs(words="transaction blocks not allowed in statement pooling mode"),
        kinds.ACCESS_DENIED: Signs(
            words="password authentication failed|no pg_hba.conf entry|no password supplied|permission denied"
            '|is not permitted to log in|is not currently accepting connections|role ".*" does not exist'
        ),
        kinds.NO_DATABASE: Signs(words='database ".*" does not exist'),
        # The second words are for sslmode=disable.
        kinds.OTHER_PROTOCOL: Signs(
            words="received invalid response to SSL negotiation|expected authentication request from server"
        ),
        kinds.TLS: Signs(words="SSL|certificate"),
        FULL: Signs(words="too many clients|too many connections|remaining connection slots"),
        # Of a server that `target_session_attrs` passes over.
        kinds.NO_WRITES: Signs(words="session is read-only|server is in hot standby mode"),
    }
    denied = Signs(frozenset({_LACKS_A_RIGHT}), r"permission denied for (?:table|relation|view) (.*\S)")
    missing = r'"(?:[^"]*\.)?([^".]+)"'

    def code(self, error: BaseException) -> Any:
        return getattr(getattr(error, "orig", None) or error, "sqlstate", None)

    def is_stale_plan(self, error: BaseException) -> bool:
        # "Cached plan must not change result type": the server's words are in its language, its function is not.
        return self.code(error) == "0A000" and _detail(error, "source_function") == "RevalidateCachedQuery"

    def refuses_row(self, error: BaseException) -> bool:
        if self.code(error) == _LACKS_A_RIGHT:  # also of a row that the policy of its table refuses
            return "row-level security policy" in words_of(error)
        return str(self.code(error))[:2] in self.bad_row

    def unfit_setting(self, error: BaseException) -> tuple[str, str] | None:
        # psycopg reads instants of one style only.
        is_style = isinstance(error, NotImplementedError) and "DateStyle" in words_of(error)
        return ("another DateStyle than ISO", "SET DateStyle = ISO") if is_style else None

    def refusing_index(self, error: BaseException, table: str) -> str | None:
        return _detail(error, "constraint_name") if _detail(error, "table_name") == table else None


def _detail(error: BaseException, name: str) -> str | None:
    return getattr(getattr(getattr(error, "orig", None), "diag", None), name, None)
