"""Finds the table that a user names, and reads what the database says of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import inspector_of
from claimjobs.dialects import dialect_of
from claimjobs.dialects.types import Instant, WholeSecond, whole_numbers, with_stored
from claimjobs.errors import BadArgument, ColumnMissing, NotClaimable, TableMissing, UnfitTable
from claimjobs.options import Finish
from claimjobs.table.columns import DONE, OURS, STATES, Columns
from claimjobs.table.ddl import table_comment, text
from claimjobs.table.definitions import MADE_BY
from claimjobs.table.roles import ColumnRoles, quote_of

TableLike = str | sa.Table | type[Any]
"""A table as a user names it: its name, with its schema or without; a description; or a class mapped to one."""
WIDTHS: Final = (sa.Numeric, sa.String, sa.DateTime)
"""Types of which some hold more values than others."""
INSTANTS: Final = {"owner_date": WholeSecond, "run_at": Instant}
COMMENT_LOST: Final = (
    "no comment says that claimjobs made this table, though it has the columns of one (a dump without comments?), so "
    "that done jobs are kept by default; if claimjobs made it, say so again"
)
MAP: Final = "claimjobs"
"""The key of a `Table`'s `info` with its map; a mapped class has it as `__claimjobs__`."""

# A column of such a type is not touched. One that needs a type that is known is refused with an error.
warnings.filterwarnings("ignore", "Did not recognize type", sa.exc.SAWarning, module=r"claimjobs\.")


def resolve(connection: sa.Connection, table: TableLike, columns: Columns | None = None) -> sa.Table:
    """The table of a name, a `Table` or a mapped class. The database has it as described.

    Raises TableMissing or ColumnMissing, UnfitTable for what is none, and BadArgument for a schema that is translated.
    """
    schema, _, bare = table.rpartition(".") if isinstance(table, str) else ("", "", "")
    described = sa.Table(bare, sa.MetaData(schema=schema or None)) if isinstance(table, str) else table_of(table)
    refuse_translated(connection, described)
    try:
        there = columns_in_database(connection, described)
    except sa.exc.NoSuchTableError:
        raise TableMissing(described.fullname) from None
    except sa.exc.DBAPIError as error:
        errors = dialect_of(connection).errors
        if errors.code(error) not in errors.bad_name:
            raise
        raise TableMissing(described.fullname) from error
    if not isinstance(table, str):
        for column in described.columns:
            if column.name not in there:
                raise ColumnMissing(described.fullname, column.name, "its description in Python", quote_of(connection))
        return named_as_there(described)
    inspector: Any = inspector_of(connection)
    # A column that another program adds between the two readings is in neither.
    how: Any = {"autoload_with": inspector, "resolve_fks": False, "include_columns": there}
    found = sa.Table(bare, sa.MetaData(), schema=described.schema, **how)
    for column in found.columns:
        column.type = there[column.name]["type"]
    names = as_spelled(connection, columns, there).names
    for role, kind in INSTANTS.items():
        instant = found.columns.get(names.get(role, ""))
        if instant is not None and isinstance(instant.type, sa.DateTime):
            instant.type = kind()  # it returns aware datetimes, also for a type without a time zone
    return found


def refuse_translated(connection: sa.Connection, table: sa.Table) -> None:
    """Raise BadArgument if the engine gives the table another schema, in which nothing looks for it."""
    if table.schema in (connection.get_execution_options().get("schema_translate_map") or ()):
        raise BadArgument(
            f"the engine's schema_translate_map gives table {table.fullname!r} another schema: name that one, as in "
            "Queue(engine, 'tenant7.jobs') or job_table('jobs', sa.MetaData(schema='tenant7'))"
        )


def as_spelled(connection: sa.Connection, columns: Columns | None, there: Iterable[str]) -> Columns:
    """A map, or the default one, with the names of these columns as the database spells them."""
    given = columns or Columns()
    if dialect_of(connection).table_rules.names_have_case:
        return given
    spelled = {name.lower(): name for name in there}
    names: Any = {role: spelled.get(name.lower(), name) for role, name in given.names.items()}
    key = [spelled.get(name.lower(), name) for name in given.key_names] or None
    return replace(given, key=key, **names)


def named_as_there(table: sa.Table) -> sa.Table:
    """The table whose columns have in Python the names of the database, and no others (`Column(..., key=...)`)."""
    if all(column.key == column.name for column in table.columns):
        return table
    columns = [column._copy() for column in table.columns]
    for column in columns:
        column.key = column.name
    key = sa.PrimaryKeyConstraint(*(column.name for column in table.primary_key))
    return sa.Table(table.name, sa.MetaData(), *columns, key, schema=table.schema, comment=table.comment)


def columns_in_database(connection: sa.Connection, table: sa.Table) -> dict[str, Any]:
    """The columns that a table has in the database, by their names, as SQLAlchemy reflects them; one of a domain has
    the type that the domain is over.

    Raises NoSuchTableError; NotClaimable for a table that SQLAlchemy cannot read, such as one with MySQL's VECTOR(3).
    """
    try:
        found = inspector_of(connection).get_columns(table.name, schema=table.schema)
    except TypeError as error:
        step = "move it to a table of its own, or upgrade SQLAlchemy"
        raise NotClaimable(table.fullname, f"has a column that SQLAlchemy cannot read ({error})", step) from error
    domains: list[Any] = [column for column in found if hasattr(column["type"], "data_type")]
    lengths = _said(connection, table, "character_maximum_length") if domains else {}
    for column in domains:
        while (type_ := getattr(column["type"], "data_type", None)) is not None:  # a domain may be over another one
            column["type"] = type_
        type_ = column["type"]
        if (length := lengths.get(column["name"])) is not None:  # SQLAlchemy does not read it
            type_.length = length
        if getattr(type_, "collation", None) == "default":  # of the database, as that of a column without a domain
            type_.collation = None
    for column in found:
        if isinstance(column["type"], sa.Float):  # SQLAlchemy reads a DOUBLE of MySQL as a Decimal, with ten digits
            column["type"].asdecimal = False
    return {column["name"]: column for column in found}


def types_with_collations(connection: sa.Connection, table: sa.Table) -> dict[str, Any]:
    """The types of the columns in the database, each a copy. Reflection returns the collation of a text only if it is
    not the table's default.
    """
    collations = _said(connection, table, "collation_name")
    types = {name: copy.copy(column["type"]) for name, column in columns_in_database(connection, table).items()}
    for name, type_ in types.items():
        if isinstance(type_, sa.String) and collations.get(name) is not None:
            type_.collation = collations[name]
    return types


def _said(connection: sa.Connection, table: sa.Table, what: str) -> dict[str, Any]:
    """This column of information_schema.columns, for each column of the table."""
    there = sa.table("columns", *map(sa.column, ("table_schema", "table_name")), schema="information_schema")
    schema = dialect_of(connection).table_rules.locate(connection, table).schema  # a search path may have several
    asked: Any = sa.select(sa.column("column_name").label("name"), sa.column(what).label("said"))
    of_table = (there.c.table_schema == schema, there.c.table_name == table.name)
    return {row.name: row.said for row in connection.execute(asked.select_from(there).where(*of_table))}


def as_stored(
    connection: sa.Connection, table: sa.Table, collations: Mapping[str, str], key: Sequence[str]
) -> sa.Table:
    """The table with the collations of its texts, and the widths of the types of its key, that the database has.

    A value must have the collation of the text that it is compared with, also if that is the table's default. A key
    that is sent by a narrower type than the stored one would be cut: it would find no row, or another one. A whole
    number is sent by the largest type, because its column may be altered to a larger one while this table is used.
    """
    there = columns_in_database(connection, table)
    same = table.to_metadata(sa.MetaData(schema=table.schema))
    for name, column in same.columns.items():
        if name in (key or table.primary_key.columns):
            wide = partial(_as_wide, there=there[name]["type"])
            column.type = with_stored(column.type, connection.dialect, wide)
        type_: Any = column.type
        if name in collations and isinstance(type_, sa.String) and not type_.collation:
            column.type = type_ = type_.copy()
            type_.collation = collations[name]
    return same


def _as_wide(described: Any, there: Any) -> Any:
    """The described type, for the values of the type in the database. Its values in Python are the described ones."""
    if any(isinstance(type_, sa.Enum | sa.Float) for type_ in (described, there)):
        return described
    if isinstance(described, sa.Integer) and isinstance(there, sa.Integer):
        return whole_numbers(there)
    alike = any(isinstance(described, kind) and isinstance(there, kind) for kind in WIDTHS)
    return there if alike and described.python_type is there.python_type else described


# --- what a user gives ---------------------------------------------------------------------------------------


def map_of(table: TableLike) -> Columns | None:
    """The map in a `Table` (`info={"claimjobs": Columns(...)}`) or a class (`__claimjobs__`)."""
    if isinstance(table, str):
        return None
    found = table.info.get(MAP) if isinstance(table, sa.Table) else getattr(table, "__claimjobs__", None)
    return found if isinstance(found, Columns) else None


def table_of(given: Any, name: str | None = None) -> sa.Table:
    """A `Table`, or that to which a class is mapped. Raises UnfitTable, whose message calls it `name`, for anything
    else; also if the class has some rows of its table only, since a claim would take the others, too, or if a table of
    a base class says of its rows who holds them.
    """
    if isinstance(given, sa.Table):
        return given
    mapper: Any = sa.inspect(given, raiseerr=False)
    table = getattr(mapper, "local_table", None)
    if not isinstance(table, sa.Table):
        what = "a class without a table" if isinstance(given, type) else type(given).__name__
        raise UnfitTable(f"{name or given!r} is {what}: name a sqlalchemy.Table or a class mapped to one")
    mapped, bases = map_of(given) or Columns(), [one for one in mapper.iterate_to_root() if not one.single]
    needed = {mapped.status, mapped.owner_id} - {None}
    found = next((one for one in bases if needed <= {*one.local_table.columns.keys()}), bases[0])
    if found is not mapper and mapper.polymorphic_on is not None:
        base, table = found.class_.__name__, found.local_table
        rows = ", ".join(repr(one.polymorphic_identity) for one in mapper.self_and_descendants)
        raise UnfitTable(
            f"class {given.__name__} is one of several with rows in table {table.fullname!r}, and a queue claims from "
            f"all rows: give {base}, with a `where` by which {mapper.polymorphic_on} is one of {rows}"
        )
    return table


# --- who made it, and what happens to its done jobs ----------------------------------------------------------


def is_made_by_us(connection: sa.Connection, table: sa.Table, words: str = MADE_BY) -> bool:
    """Whether the table's comment in the database says that claimjobs made it. `words`: what it must say."""
    return words in (dialect_of(connection).table_rules.comment(inspector_of(connection), table) or "")


def default_finish(connection: sa.Connection, roles: ColumnRoles) -> Finish | None:
    """What happens to done jobs by default; None: there is no default, the user must choose.

    By default rows are deleted only from a table that claimjobs made. They are kept as done only if a map, or the words
    of the column's type, give a value for done: a boolean `status` of the user's may mean something else.
    """
    if is_made_by_us(connection, roles.table):
        return "delete"
    says_done = roles.status is not None and DONE in roles.state.can
    return "keep" if says_done and (roles.states_named or isinstance(roles.state.values[DONE], str)) else None


def lost_comment(connection: sa.Connection, jobs: sa.Table) -> str | None:
    """The statement that says again that claimjobs made a table of jobs; None: nothing shows that this was lost.

    A dump without comments loses it, and keeps the type of `status`. Only a table that claimjobs made, or that is made
    like one, has such a type: `setup-tables --add` adds a text.
    """
    if not {*jobs.columns.keys()} >= {*OURS} or is_made_by_us(connection, jobs):
        return None
    type_ = columns_in_database(connection, jobs)["status"]["type"]
    made = isinstance(type_, sa.Enum) and tuple(type_.enums) == STATES
    return text(table_comment(jobs), connection) if made else None
