"""Odd names of tables and columns."""

from __future__ import annotations

from claimjobs import Columns
from claimjobs.errors import ColumnUnfit, NotClaimable
from tests.foreign.cases import MYSQL, POSTGRES, Case, table

_TABLES = ("a%", "%s", "%(x)s", "100 % ", "Order", "select", "Ünï ", ":x ", "a'b ", 'a"b ', "a\\b ", "{x}", "a-b")
TABLES: list[Case] = [
    *(table(f"table {name}", table=name) for name in ("a%", "%(x)s", 'a"b ', "a'b ", ":x ")),
    *(table(f"table {name}", table=name, ways=("lease",)) for name in _TABLES if name[:2] not in ("a%", "%(", "a'")),
    table("table a`b", table="a`b", on=MYSQL),
]
_COLUMNS = ("a%", "%s", "%(x)s", "a b", "a:b", "a(b)", "a'b", "A", "select", "size", "claimjobs_k0", "claimjobs_place")
COLUMNS: list[Case] = [
    *(
        table(
            f"column {name}",
            f"CREATE TABLE {{t}} (id INTEGER PRIMARY KEY, {quote}{name}{quote} INTEGER DEFAULT 5, {{queue}})",
            on=on,
            ways=("lease",),
        )
        for on, quote, more in ((POSTGRES, '"', 'a""b'), (MYSQL, "`", 'a"b'))
        for name in (*_COLUMNS, more)
    ),
    *(
        table(
            f"key {name}",
            f"CREATE TABLE {{t}} ({quote}{name}{quote} INTEGER PRIMARY KEY, {{queue}})",
            rows=f"INSERT INTO {{t}} ({quote}{name}{quote}, n) VALUES (1, 0), (2, 1), (3, 2)",
            count=3,
            on=on,
            ways=("lease", "advisory"),
        )
        for on, quote, more in ((POSTGRES, '"', 'a""b'), (MYSQL, "`", 'a"b'))
        for name in ("a%", "a b", "a:b", "a(b)", "select", more)
    ),
    *(
        table(
            f"owner {name}",
            f"CREATE TABLE {{t}} (id INTEGER PRIMARY KEY, n INTEGER, {quote}{name}{quote} INTEGER, "
            "attempts INTEGER NOT NULL DEFAULT 0, run_at TIMESTAMP(6) NULL)",
            on=on,
            ways=("lease",),
            columns=Columns(status=None, owner_id=name.replace(2 * quote, quote)),
        )
        for on, quote, more in ((POSTGRES, '"', 'a""b'), (MYSQL, "`", 'a"b'))
        for name in ("a%", "a b", "a:b", "a(b)", "select", more)
    ),
    *(
        table(
            f"column {name}",
            f"CREATE TABLE {{t}} (id INTEGER PRIMARY KEY, {name} INTEGER, {{queue}})",
            refused=ColumnUnfit,
            ways=("lease", "side-car"),
        )
        for name in ("claimjobs_me", "claimjobs_size", "claimjobs_keys")
    ),
]
BACKTICK: list[Case] = [
    table(
        "column a`b",
        "CREATE TABLE {t} (id INTEGER PRIMARY KEY, `a``b` INTEGER, {queue})",
        on=MYSQL,
        refused=NotClaimable,
        ways=("lease", "side-car"),
    )
]
ALL: list[Case] = [*TABLES, *COLUMNS, *BACKTICK]
