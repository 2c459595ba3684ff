"""Finding rows by a list of keys on MySQL: the keys are a table, and the index is named.

InnoDB locks a row when it reads it. So a statement that locks must read no rows but those of its keys, and that must
not depend on the planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles

from claimjobs.dialects.stored_keys import JsonKeys, StoredKeys, stored_type

_HERE: Final[sa.Dialect] = mysql.dialect()
PREPARER: Final = _HERE.identifier_preparer
_BINARY: Final = (sa.LargeBinary, sa.BINARY, sa.VARBINARY)


def force(index: str | None) -> str:
    """The hint that makes a statement use this index; None: the primary key."""
    return f"FORCE INDEX ({'PRIMARY' if index is None else PREPARER.quote(index)})"


def joined(rows: sa.Select[Any], key: Sequence[sa.Column[Any]], parameter: str, index: str | None) -> sa.Select[Any]:
    """A select of the rows whose keys are in this parameter, in the order of the keys."""
    given, matches = keys_table(key, parameter)
    return straight(rows, given.join(key[0].table, matches), index)


def straight(rows: sa.Select[Any], join: sa.Join, index: str | None) -> sa.Select[Any]:
    """Read the left of a join first, in its order, and find the row on the right for each of its rows by this index."""
    return rows.select_from(join).prefix_with("STRAIGHT_JOIN").with_hint(join.right, force(index))


def keys_table(key: Sequence[sa.Column[Any]], parameter: str) -> tuple[sa.TableValuedAlias, sa.ColumnElement[bool]]:
    """The keys of a parameter as a table, in their order; and the condition that joins it to the table of the jobs."""
    given, values = json_rows(json_keys(key, parameter), key, "candidate")
    return given, sa.and_(*(column == value for column, value in zip(key, values, strict=True)))


def json_keys(key: Sequence[sa.Column[Any]], parameter: str) -> sa.BindParameter[Any]:
    """The keys of a parameter as a JSON document."""
    return sa.bindparam(parameter, type_=_JsonKeys(tuple(column.type for column in key)))


def json_rows(
    document: sa.ColumnElement[Any], key: Sequence[sa.Column[Any]], name: str
) -> tuple[sa.TableValuedAlias, Sequence[sa.ColumnElement[Any]]]:
    """The keys of a JSON document as a table of this name, in their order; and the key's columns in it."""
    # A user's predicate in the same WHERE may name columns without their table: so these names are unusual.
    names = [f"claimjobs_k{i}" for i in range(len(key))]
    paths = [f"$[{i}]" for i in range(len(key))] if len(key) > 1 else ["$"]
    columns = ", ".join(f"{names[i]} {_type(column)} path '{paths[i]}'" for i, column in enumerate(key))
    given = sa.func.json_table(document, sa.text(f"'$[*]' columns ({columns})")).table_valued(*names, name=name)
    return given, [
        sa.type_coerce(_read(column, given.c[name]), column.type) for name, column in zip(names, key, strict=True)
    ]


def listed(key: Sequence[sa.ColumnElement[Any]], parameter: str) -> sa.ColumnElement[bool]:
    """`key IN (the values of this parameter)`, for at least one value and a driver that writes a list into the
    statement."""
    values: sa.BindParameter[Any] = sa.bindparam(parameter, type_=_ListedKeys(tuple(column.type for column in key)))
    return (key[0] if len(key) == 1 else sa.tuple_(*key)).bool_op("IN")(values)


class _ListedKeys(StoredKeys):
    cache_ok = True
    here = _HERE


class _JsonKeys(JsonKeys):
    cache_ok = True
    here = _HERE


def _type(column: sa.Column[Any]) -> str:
    """The type of a key within JSON_TABLE, which has no UUID. JSON holds no bytes, so they are sent as hex."""
    stored = stored_type(column.type, _HERE)
    if isinstance(stored, _BINARY):
        return "text"
    if isinstance(stored, sa.Uuid):
        return "char(32)"
    collation = getattr(stored, "collation", None)
    name = column.type.compile(dialect=_HERE).partition(" CHARACTER SET ")[0].partition(" COLLATE ")[0]
    return f"{name} COLLATE {PREPARER.quote(collation)}" if collation else name


def _read(column: sa.Column[Any], given: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.unhex(given) if isinstance(stored_type(column.type, _HERE), _BINARY) else given


class StraightDelete(sa.Delete):
    """DELETE from a table that is joined to keys. It reads the keys first, whatever the planner would choose."""

    inherit_cache = True


@compiles(StraightDelete, "mysql", "mariadb")
def _delete(delete: StraightDelete, compiler: Any, **kw: Any) -> str:
    def tables(_delete: Any, table: Any, extra: Sequence[Any], from_hints: dict[Any, str], **kw: Any) -> str:
        kw["asfrom"] = True
        join = " STRAIGHT_JOIN ".join(part._compiler_dispatch(compiler, **kw) for part in (*extra, table))
        return f"USING {join} {' '.join(from_hints.values())}"

    compiler.delete_extra_from_clause = tables
    return str(compiler.visit_delete(delete, **kw))
