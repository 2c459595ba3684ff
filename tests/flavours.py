"""The databases that the tests know: families, flavours, and which of them has which capability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from claimjobs.dialects import Dialect, PortablePostgres

Family = Literal["postgres", "mysql", "mariadb"]
FAMILIES: tuple[Family, ...] = ("postgres", "mysql", "mariadb")
MAY_BE_MISSING = frozenset({"mariadb"})


@dataclass(frozen=True)
class Flavour:
    """A server and the dialect that claimjobs is to use on it (None: the one it finds)."""

    family: Family
    dialect: Dialect | None = None


FLAVOURS: dict[str, Flavour] = {
    "postgres": Flavour("postgres"),
    "postgres-portable": Flavour("postgres", PortablePostgres()),
    "mysql": Flavour("mysql"),
    "mariadb": Flavour("mariadb"),
}

CAPABILITIES: dict[str, tuple[str, frozenset[str]]] = {
    "one statement": ("a claim in one statement", frozenset({"postgres"})),
    "lock in order": ("locks in the order of the rows, as they are found", frozenset({"postgres"})),
    "count of collisions": ("candidates of which it skips some", frozenset({"postgres-portable", "mysql", "mariadb"})),
    "lock of what is found": ("a lock on what a subquery finds", frozenset({"postgres", "mysql"})),
    "locks what it reads": ("locks on rows that are read and then not wanted", frozenset({"mysql", "mariadb"})),
    "planner switches": ("switches for kinds of join", frozenset({"postgres", "postgres-portable"})),
    "named lock table": ("a view of every named lock", frozenset({"postgres", "postgres-portable", "mysql"})),
    "row lock table": ("a view of every row lock", frozenset({"mysql"})),
    "schemas": ("schemas within a database", frozenset({"postgres", "postgres-portable"})),
    "locks that spare keys": ("row locks that foreign keys pass", frozenset({"postgres", "postgres-portable"})),
    "table collation": ("a collation for each table", frozenset({"mysql", "mariadb"})),
    "partial indexes": ("indexes over some rows only", frozenset({"postgres", "postgres-portable"})),
    "skips duplicates": ("an INSERT that leaves duplicates out", frozenset({"postgres"})),
    "current reads": ("locking reads beyond a transaction's snapshot", frozenset({"mysql", "mariadb"})),
    "native uuid": ("a UUID type of its own", frozenset({"postgres", "postgres-portable", "mariadb"})),
    "copies": ("rows sent as data", frozenset({"postgres"})),
    "joined rows": ("an INSERT of many rows", frozenset({"mysql", "mariadb"})),
    "values that Python has not": ("dates beyond Python's", frozenset({"postgres", "postgres-portable"})),
    "swallowing triggers": ("triggers that swallow a write", frozenset({"postgres", "postgres-portable"})),
    "arrays": ("columns of arrays", frozenset({"postgres", "postgres-portable"})),
}
"""What `backend.requires` knows, and the backends that have it."""
