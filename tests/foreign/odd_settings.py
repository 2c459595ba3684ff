"""Odd settings of a session, as a server's defaults or a user's may be."""

from __future__ import annotations

from claimjobs import Liveness
from claimjobs.errors import SettingUnfit
from tests.foreign.cases import MYSQL, POSTGRES, Case, table

_SAFE = ("SET SESSION sql_safe_updates = 1",)
_NOT_OURS = dict.fromkeys(("transaction", "advisory"), SettingUnfit)
"""Sessions that the handler uses, too."""
_HELD = ("lease", "transaction", "advisory")
_CHAR = "CREATE TABLE {t} (id CHAR(9) PRIMARY KEY, {queue})"
ALL: list[Case] = [
    *(
        table(mode, settings=(f"SET SESSION sql_mode = '{mode}'",), on=MYSQL, ways=("lease",))
        for mode in ("ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI,TRADITIONAL", "")
    ),
    table(
        "PAD_CHAR_TO_FULL_LENGTH",
        _CHAR,
        rows="INSERT INTO {t} (id, n) VALUES ('a', 0), ('b', 1), ('c', 2), ('d d', 3)",
        count=4,
        settings=("SET SESSION sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'",),
        on=MYSQL,
        ways=("lease",),
    ),
    *(
        table(setting, settings=(f"SET SESSION {setting}",), on=MYSQL, ways=("lease",))
        for setting in (
            "autocommit = 0",
            "completion_type = CHAIN",
            "time_zone = '+05:00'",
            "character_set_results = latin1",
        )
    ),
    *(
        table(setting, settings=(f"SET SESSION {setting}",), on=("mysql",), ways=("lease",))
        for setting in ("sql_require_primary_key = 1", "transaction_isolation = 'SERIALIZABLE'")
    ),
    table("sql_safe_updates = 1", settings=_SAFE, on=("mysql",)),
    table(
        "sql_safe_updates = 1, in MariaDB",
        settings=_SAFE,
        on=("mariadb",),
        refused=_NOT_OURS,
        names="sql_safe_updates = 1",
    ),
    table(
        "sql_safe_updates = 1, behind a pooler",
        settings=_SAFE,
        on=("mariadb",),
        ways=("lease",),
        options={"liveness": Liveness(session_lock=False)},
        refused=SettingUnfit,
        names="sql_safe_updates = 1",
    ),
    table(
        "sql_select_limit = 1",
        settings=("SET SESSION sql_select_limit = 1",),
        on=MYSQL,
        refused=_NOT_OURS,
        names="sql_select_limit = 1",
    ),
    table(
        "tx_isolation = 'SERIALIZABLE'",
        settings=("SET SESSION tx_isolation = 'SERIALIZABLE'",),
        on=("mariadb",),
        ways=("lease", "transaction"),
    ),
    *(
        table(what, settings=settings, on=on, ways=_HELD, refused=SettingUnfit)
        for what, settings, on in (
            ("default_transaction_read_only = on", ("SET default_transaction_read_only = on",), POSTGRES),
            ("TRANSACTION READ ONLY", ("SET SESSION TRANSACTION READ ONLY",), MYSQL),
        )
    ),
    table(
        "max_join_size = 1",
        settings=("SET SESSION max_join_size = 1, sql_big_selects = 0",),
        on=MYSQL,
        ways=_HELD,
        refused=SettingUnfit,
        names="max_join_size",
    ),
    *(
        table(setting, settings=(f"SET {setting}",), on=POSTGRES, ways=("lease", "transaction"))
        for setting in (
            "default_transaction_isolation = 'serializable'",
            "standard_conforming_strings = off",
            "DateStyle = 'German, DMY'",
            "IntervalStyle = 'iso_8601'",
            "TimeZone = 'Asia/Kathmandu'",
            "bytea_output = 'escape'",
            "extra_float_digits = 0",
            "enable_indexscan = off",
            "jit = on",
        )
    ),
]
