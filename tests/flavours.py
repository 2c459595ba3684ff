"""The databases that the tests know, and which of them has which capability."""

from __future__ import annotations

from typing import Literal

Family = Literal["postgres", "mysql", "mariadb"]
FAMILIES: tuple[Family, ...] = ("postgres", "mysql", "mariadb")
MAY_BE_MISSING = frozenset({"mariadb"})


CAPABILITIES: dict[str, tuple[str, frozenset[str]]] = {
    "one statement": ("a claim in one statement", frozenset({"postgres"})),
    "lock in order": ("locks in the order of the rows, as they are found", frozenset({"postgres"})),
    "count of collisions": ("candidates of which it skips some", frozenset({"mysql", "mariadb"})),
    "lock of what is found": ("a lock on what a subquery finds", frozenset({"postgres", "mysql"})),
    "locks what it reads": ("locks on rows that are read and then not wanted", frozenset({"mysql", "mariadb"})),
    "planner switches": ("switches for kinds of join", frozenset({"postgres"})),
    "named lock table": ("a view of every named lock", frozenset({"postgres", "mysql"})),
    "row lock table": ("a view of every row lock", frozenset({"mysql"})),
    "schemas": ("schemas within a database", frozenset({"postgres"})),
    "locks that spare keys": ("row locks that foreign keys pass", frozenset({"postgres"})),
    "table collation": ("a collation for each table", frozenset({"mysql", "mariadb"})),
    "partial indexes": ("indexes over some rows only", frozenset({"postgres"})),
    "skips duplicates": ("an INSERT that leaves duplicates out", frozenset({"postgres"})),
    "current reads": ("locking reads beyond a transaction's snapshot", frozenset({"mysql", "mariadb"})),
    "native uuid": ("a UUID type of its own", frozenset({"postgres", "mariadb"})),
    "copies": ("rows sent as data", frozenset({"postgres"})),
    "joined rows": ("an INSERT of many rows", frozenset({"mysql", "mariadb"})),
    "values that Python has not": ("dates beyond Python's", frozenset({"postgres"})),
    "swallowing triggers": ("triggers that swallow a write", frozenset({"postgres"})),
    "deferred constraints": ("constraints that are checked at the commit", frozenset({"postgres"})),
    "equal nulls": ("unique indexes in which NULL equals NULL", frozenset({"postgres"})),
    "enum keys": ("keys of an ENUM", frozenset({"postgres", "mysql"})),
    "arrays": ("columns of arrays", frozenset({"postgres"})),
}
"""What `backend.requires` knows, and the backends that have it."""
