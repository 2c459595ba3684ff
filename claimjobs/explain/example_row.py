"""The test that `claimjobs adopt` writes: the tables that it makes, and a row that is a job."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import predicate_errors, reason
from claimjobs.dialects import dialect_named_by
from claimjobs.errors import BadArgument
from claimjobs.explain.adoption import Plan, predicate
from claimjobs.explain.diagnosis import column_for
from claimjobs.table.ddl import ddl_statements
from claimjobs.table.definitions import shared_tables

EQUAL: Final = r"\b{}[\"`]?\s*(?:=|IN\s*\()\s*(?:'((?:[^']|'')*)'|(-?\d+(?:\.\d+)?))"
"""A comparison of a column in SQL, with its name in {}: the text or the number that it is compared with."""
SAMPLES: Final[Mapping[type[Any], Any]] = {
    bool: True,
    int: 1,
    float: 1.0,
    str: "x",
    bytes: b"x",
    date: date(2026, 1, 1),
    time: time(12),
    timedelta: timedelta(hours=1),
    UUID: UUID(int=1),
    list: [],
    dict: {},
}
"""A value for each type in Python."""
IMPORTS: Final[Mapping[str, str]] = {
    "datetime": "import datetime",
    "zoneinfo": "import zoneinfo",
    "Decimal": "from decimal import Decimal",
    **dict.fromkeys(("IPv4Address", "IPv4Network"), "from ipaddress import IPv4Address, IPv4Network"),
    **dict.fromkeys(("IPv6Address", "IPv6Network"), "from ipaddress import IPv6Address, IPv6Network"),
    "UUID": "from uuid import UUID",
}
"""What the `repr` of a value needs, by a name in it."""


def imports_of(text: str) -> list[str]:
    """The imports that this text of values needs."""
    return list(dict.fromkeys(line for name, line in IMPORTS.items() if re.search(rf"\b{name}\b", text)))


def statements_of(plan: Plan) -> list[str]:
    """The statements that make all tables of this queue in an empty database, without a schema: on MySQL that would be
    another database, a real one. Raises BadArgument if SQLAlchemy cannot describe a column.
    """
    found, columns = plan.found, plan.described()["columns"]
    table = sa.Table(found.table.name, sa.MetaData(), *map(_alone, found.table.columns))
    for column in (column_for(role, found.table, columns) for role in found.lacks(plan.kind)):
        if column.name not in table.c:
            table.append_column(column)
    if not list(found.table.primary_key):
        sa.Index(f"{table.name}_key", *(table.c[name] for name in found.key), unique=True)
    beside = [] if plan.kind != "side-car" else [_without_schema(plan.tables()[0])]
    try:
        own = ddl_statements(found.engine, [_without_schema(table)], marked=False)
    except sa.exc.CompileError as error:
        raise BadArgument(f"{error}: write into TABLES the statements that make the tables") from None
    return [*own, *ddl_statements(found.engine, [*beside, *shared_tables()])]


def _alone(column: sa.Column[Any]) -> sa.Column[Any]:
    """The column without its comment, its default, which may call functions, and what refers to other tables."""
    generated: list[Any] = []
    if column.computed is not None:
        generated = [sa.Computed(column.computed.sqltext, persisted=column.computed.persisted)]
    elif column.identity is not None:
        generated = [sa.Identity(always=column.identity.always)]
    how: dict[str, Any] = {"primary_key": column.primary_key, "autoincrement": column.autoincrement}
    return sa.Column(column.name, column.type, *generated, nullable=column.nullable, **how)


def _without_schema(table: sa.Table) -> sa.Table:
    same = table.to_metadata(sa.MetaData(), schema=None)  # type: ignore[arg-type]
    for column in same.columns:
        if getattr(column.type, "schema", None) is not None:
            column.type = copy.copy(column.type)
            column.type.schema = None  # type: ignore[attr-defined]
    return same


def example_row(plan: Plan) -> tuple[dict[str, Any], bool]:
    """A row that is a job that waits: one of the table's if there is one, else values for the columns that need one.
    Also whether it is one of the table's.

    Raises BadArgument if there is none, and none can be made up; BadPredicate.
    """
    table, states = plan.found.table, plan.states
    where = predicate(plan.found.engine, plan.where or "true")
    waits = [table.c[plan.found.names["status"]] == states["unclaimed"]] if "unclaimed" in states else []
    try:
        with connected(plan.found.engine) as connection:
            with predicate_errors(dialect_named_by(connection)):  # some only show in a row, such as that of a CAST
                first = connection.execute(sa.select(table).where(where, *waits).limit(1)).first()
            row = dict(_values(plan, None if first is None else first._asdict()))
            # The first part of the union, without rows, gives the columns their types.
            values = [sa.literal(row[c.name], c.type) if c.name in row else sa.null() for c in table.columns]
            rows = sa.union_all(sa.select(table).where(sa.false()), sa.select(*values)).subquery(table.name)
            is_job = connection.scalar(sa.select(sa.literal_column("1")).select_from(rows).where(where)) is not None
    except sa.exc.StatementError as error:
        raise BadArgument(f"no row could be made ({reason(error)}): write into ROW one that is a job") from None
    if not is_job:
        raise BadArgument(
            f"the table has no row with {plan.where}, and none was made: write into ROW a row that is a job"
        )
    return row, first is not None


def _values(plan: Plan, first: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """The columns that have values. Of those that claimjobs writes, only what `where` or NOT NULL needs: `first` may
    have been tried already.
    """
    table, names = plan.found.table, plan.found.names
    ours = {name for role, name in names.items() if role != "status"}
    for column in table.columns:
        is_named = re.search(rf"(?<!\w){re.escape(column.name)}(?!\w)", plan.where or "", re.I) is not None
        is_status = column.name == names.get("status") and "unclaimed" in plan.states
        must = not column.nullable and column is not table.autoincrement_column
        if column.computed is not None or (column.identity is not None and (column.identity.always or not is_named)):
            continue
        if first is not None and (is_named or column.name not in ours):
            if first[column.name] is not None:
                yield column.name, first[column.name]
        elif is_named or is_status or must:
            yield column.name, plan.states["unclaimed"] if is_status else _sample(plan, column)


def _sample(plan: Plan, column: sa.Column[Any]) -> Any:
    """A value of this column that is there, or the first one of its type. Raises BadArgument."""
    type_: Any = column.type
    # That of JSON depends on the release of SQLAlchemy.
    python = dict if isinstance(type_, sa.JSON) else type_.python_type
    if compared := re.search(EQUAL.format(re.escape(column.name)), plan.where or "", re.I):
        text = compared[2] or compared[1].replace("''", "'")
        return python(text) if python in (int, float, Decimal) else text
    if column.name == plan.found.names.get("status") and plan.found.values:
        return next(iter(plan.found.values))
    if choices := getattr(type_, "enums", None) or getattr(type_, "values", None):
        return choices[0]
    if python is Decimal:
        has_units = type_.precision is None or type_.precision > (type_.scale or 0)
        return Decimal(1) if has_units else Decimal(1).scaleb(-type_.scale)
    if python is datetime:
        return datetime(2026, 1, 1, tzinfo=UTC if type_.timezone else None)
    if python not in SAMPLES:
        raise BadArgument(f"there is no example of the type of {column.name!r}: write into ROW a row that is a job")
    return SAMPLES[python]
