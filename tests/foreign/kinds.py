"""Kinds of tables: engines, views, children, partitions."""

from __future__ import annotations

from claimjobs import Columns
from claimjobs.errors import ColumnUnfit, KeyUnfit, NotClaimable
from tests.foreign.cases import MYSQL, POSTGRES, WAYS, Case, table

PLAIN = "CREATE TABLE {t} (id INTEGER PRIMARY KEY, {queue})"
DAY = "CREATE TABLE {t} (id INTEGER NOT NULL, day INTEGER NOT NULL DEFAULT 1, {queue}, PRIMARY KEY (id, day))"
BY_STATUS = "PARTITION BY LIST (status)"
NOT_BESIDE = dict.fromkeys(("lease", "transaction", "advisory"), ColumnUnfit)
"""A side-car writes nothing into the table."""
_BASE = "CREATE TABLE {t}_base (id INTEGER PRIMARY KEY, {queue})"
_REMOTE = (
    "CREATE FOREIGN DATA WRAPPER {t}_wrapper",
    "CREATE SERVER {t}_server FOREIGN DATA WRAPPER {t}_wrapper",
)
_ARCHIVED = "CREATE TABLE {t} (id INTEGER AUTO_INCREMENT PRIMARY KEY, {queue}) ENGINE="
_FLAT = "CREATE TABLE {t} (id INTEGER NOT NULL, n INTEGER NOT NULL, status VARCHAR(16) NOT NULL) ENGINE=CSV"

ENGINES: list[Case] = [
    table("InnoDB", f"{PLAIN} ENGINE=InnoDB", on=MYSQL),
    table("InnoDB, compressed", f"{PLAIN} ENGINE=InnoDB ROW_FORMAT=COMPRESSED", on=MYSQL, ways=("lease",)),
    *(table(name, f"{PLAIN} ENGINE={name}", on=MYSQL, refused=NotClaimable) for name in ("MyISAM",)),
    table("MRG_MYISAM", f"{PLAIN} ENGINE=MRG_MYISAM", on=MYSQL, rows="", refused=NotClaimable),
    table("MEMORY", f"{PLAIN} ENGINE=MEMORY".replace("{queue}", "n INTEGER"), on=MYSQL, refused=NotClaimable),
    table("BLACKHOLE", f"{PLAIN} ENGINE=BLACKHOLE", on=("mysql",), rows="", refused=NotClaimable),
    table("ARCHIVE", f"{_ARCHIVED}ARCHIVE", on=("mysql",), rows="", refused=NotClaimable),
    table("CSV", _FLAT, on=MYSQL, rows="", refused=NotClaimable),
    table("Aria", f"{PLAIN} ENGINE=Aria", on=("mariadb",), refused=NotClaimable),
    table("UNLOGGED", PLAIN.replace("TABLE", "UNLOGGED TABLE"), on=POSTGRES),
]
KINDS: list[Case] = [
    table("a view", (_BASE, "CREATE VIEW {t} AS SELECT * FROM {t}_base"), rows="", refused=NotClaimable),
    table(
        "a materialized view",
        (
            _BASE,
            "CREATE MATERIALIZED VIEW {t} AS SELECT * FROM {t}_base",
            "CREATE UNIQUE INDEX ON {t} (id)",
        ),
        rows="",
        on=POSTGRES,
        columns=Columns(key="id"),
        refused=NotClaimable,
    ),
    table(
        "a foreign table",
        (*_REMOTE, "CREATE FOREIGN TABLE {t} (id INTEGER, {queue}) SERVER {t}_server"),
        rows="",
        on=POSTGRES,
        refused=NotClaimable,
    ),
    table(
        "a foreign partition",
        (
            *_REMOTE,
            "CREATE TABLE {t} (id INTEGER NOT NULL, {queue}) PARTITION BY HASH (id)",
            "CREATE FOREIGN TABLE {t}_0 PARTITION OF {t} FOR VALUES WITH (MODULUS 1, REMAINDER 0) SERVER {t}_server",
        ),
        rows="",
        on=POSTGRES,
        refused=NotClaimable,
    ),
    table(
        "a parent",
        (PLAIN, "CREATE TABLE {t}_child () INHERITS ({t})", "INSERT INTO {t}_child (id, n) VALUES (1, 8), (2, 9)"),
        on=POSTGRES,
        refused=KeyUnfit,
    ),
    table("a child", (_BASE, "CREATE TABLE {t} (PRIMARY KEY (id)) INHERITS ({t}_base)"), on=POSTGRES),
]
PARTITIONS: list[Case] = [
    table(
        "by hash",
        (
            f"{PLAIN} PARTITION BY HASH (id)",
            *(f"CREATE TABLE {{t}}_{i} PARTITION OF {{t}} FOR VALUES WITH (MODULUS 2, REMAINDER {i})" for i in (0, 1)),
        ),
        on=POSTGRES,
    ),
    table("by hash, in one", f"{PLAIN} PARTITION BY HASH (id) PARTITIONS 3", on=MYSQL),
    table(
        "by a day", f"{DAY} PARTITION BY RANGE (day) (PARTITION old VALUES LESS THAN (5))", on=MYSQL, ways=("lease",)
    ),
    table(
        "by status, within the key",
        (
            "CREATE TABLE {t} (id INTEGER NOT NULL, {queue}, PRIMARY KEY (id, status)) PARTITION BY LIST (status)",
            "CREATE TABLE {t}_0 PARTITION OF {t} FOR VALUES IN ('unclaimed')",
            "CREATE TABLE {t}_1 PARTITION OF {t} DEFAULT",
        ),
        on=POSTGRES,
        refused=NOT_BESIDE,
    ),
    table(
        "by status",
        (
            "CREATE TABLE {t} (id INTEGER NOT NULL, {queue}) PARTITION BY LIST (status)",
            "CREATE TABLE {t}_0 PARTITION OF {t} FOR VALUES IN ('unclaimed')",
            "CREATE TABLE {t}_1 PARTITION OF {t} DEFAULT",
            "CREATE INDEX ON {t} (id)",
        ),
        on=POSTGRES,
        ways=("lease", "transaction", "advisory"),
        columns=Columns(key="id"),
        refused=ColumnUnfit,
    ),
    table(
        "by status, in one",
        "CREATE TABLE {t} (id INTEGER NOT NULL, {queue}, KEY (id)) PARTITION BY KEY (status) PARTITIONS 3",
        on=MYSQL,
        ways=("lease", "transaction", "advisory"),
        columns=Columns(key="id"),
        refused=ColumnUnfit,
    ),
]
COLUMNS: list[Case] = [
    table(
        "status within the key",
        "CREATE TABLE {t} (id INTEGER NOT NULL, {queue}, PRIMARY KEY (id, status))",
        refused=NOT_BESIDE,
    ),
    table(
        "attempts within the key",
        "CREATE TABLE {t} (id INTEGER NOT NULL, {queue}, PRIMARY KEY (id, attempts))",
        refused=NOT_BESIDE,
    ),
    table("a number of the user's within the key", DAY),
    table(
        "a generated key",
        "CREATE TABLE {t} (id INTEGER GENERATED ALWAYS AS (n + 1) STORED PRIMARY KEY, {queue})",
        rows="INSERT INTO {t} (n) VALUES (0), (1), (2)",
        count=3,
        on=("postgres", "mysql"),
    ),
    table(
        "generated attempts",
        "CREATE TABLE {t} (id INTEGER PRIMARY KEY, n INTEGER, status VARCHAR(16) DEFAULT 'unclaimed', "
        "owner_id INTEGER, attempts INTEGER GENERATED ALWAYS AS (n + 1) STORED)",
        ways=("lease", "transaction", "advisory"),
        refused=ColumnUnfit,
    ),
    *(
        table(
            f"a column of type {type_}",
            f"CREATE TABLE {{t}} (id INTEGER PRIMARY KEY, v {type_}, {{queue}})",
            on=on,
            ways=("lease", "transaction"),
        )
        for on, types in {
            POSTGRES: ("JSONB", "INTEGER[]", "XID8", "MONEY", "POINT", "INTERVAL", "TSVECTOR", "XML"),
            MYSQL: ("JSON", "SET('a')", "POINT", "FLOAT", "BIT(3)", "INTEGER GENERATED ALWAYS AS (n) VIRTUAL"),
        }.items()
        for type_ in types
    ),
]
COLUMNS.append(
    table(
        "a column of type VECTOR",
        "CREATE TABLE {t} (id INTEGER PRIMARY KEY, v VECTOR(3), {queue})",
        on=("mysql",),
        refused=NotClaimable,
    )
)
_RULE = "CREATE RULE {t}_rule AS ON "
_LOG = "CREATE TABLE {t}_log (id INTEGER)"
RULES: list[Case] = [
    table(
        what,
        (PLAIN, _LOG, f"{_RULE}{rule}"),
        on=POSTGRES,
        ways=WAYS if refused else ("lease", "transaction"),
        refused=NotClaimable if refused else None,
    )
    for what, rule, refused in (
        ("DELETE DO ALSO", "DELETE TO {t} DO ALSO INSERT INTO {t}_log VALUES (OLD.id)", True),
        ("DELETE DO INSTEAD NOTHING", "DELETE TO {t} DO INSTEAD NOTHING", True),
        ("UPDATE DO ALSO", "UPDATE TO {t} DO ALSO INSERT INTO {t}_log VALUES (OLD.id)", True),
        ("INSERT DO ALSO", "INSERT TO {t} DO ALSO INSERT INTO {t}_log VALUES (NEW.id)", False),
    )
]
_TRIGGER = "CREATE TRIGGER {t}_trigger BEFORE UPDATE ON {t} FOR EACH ROW "
TRIGGERS: list[Case] = [
    table(
        "BEFORE UPDATE",
        (
            PLAIN,
            "CREATE FUNCTION {t}_f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.n := OLD.n; RETURN NEW; END$$",
            f"{_TRIGGER}EXECUTE FUNCTION {{t}}_f()",
        ),
        on=POSTGRES,
    ),
    table("BEFORE UPDATE, in one", (PLAIN, f"{_TRIGGER}SET NEW.n = OLD.n"), on=MYSQL),
    table(
        "rows that refer to it",
        (
            f"{PLAIN}",
            "CREATE TABLE {t}_part (id INTEGER PRIMARY KEY, job INTEGER, "
            "FOREIGN KEY (job) REFERENCES {t} (id) ON DELETE CASCADE)",
        ),
    ),
    table(
        "row level security",
        (PLAIN, "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY", "CREATE POLICY p ON {t} USING (n >= 0)"),
        on=POSTGRES,
    ),
]
ALL: list[Case] = [*ENGINES, *KINDS, *PARTITIONS, *COLUMNS, *RULES, *TRIGGERS]
