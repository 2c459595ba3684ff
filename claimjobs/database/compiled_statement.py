"""Wire: a statement of a claim or a settle, which its driver gets as the text that SQLAlchemy made of it.

A consumer sends the same few statements all the time. What SQLAlchemy does for each, to find what it has compiled, to
describe the result, to see who listens, is nearly a third of what a consumer computes for a batch (decision 0025). So
it is asked once; after that only where it is needed: where somebody listens to the engine, has it log, or has it change
what is sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import BindTyping
from sqlalchemy.sql.compiler import SQLCompiler

FAST_PATH: Final = not os.environ.get("CLAIMJOBS_NO_FAST_PATH")
"""Off: SQLAlchemy sends every statement, and no column is encoded (see `claimjobs.statements.column_encoding`). The
environment variable CLAIMJOBS_NO_FAST_PATH turns it off, for tests and to find a fault. Only speed depends on it."""

Taken = TypeVar("Taken")
Given = Mapping[str, Any]
"""Values by the names of parameters: the same names each time."""


class Reader(Protocol):
    """What reads the rows of a statement."""

    def describe(self, dialect: sa.Dialect, description: Sequence[Any]) -> None:
        """Learn how the driver describes the columns of a result, as in PEP 249."""

    def fetch(self, cursor: Any) -> Sequence[Any]:
        """All rows of a driver's cursor."""


class CompiledStatement:
    """A statement that is sent often. Errors are SQLAlchemy's, whichever way it goes."""

    def __init__(self, statement: Any) -> None:
        self.statement = statement
        self._is_new = True
        self._text: Text | None = None

    def rows(self, connection: sa.Connection, given: Given, reader: Reader) -> Sequence[Any]:
        """All rows of its result, as the driver gives them. The reader is told of their columns before the first."""
        text = self._text_for(connection, given)
        if text is not None:
            return _sent(text, connection, given, reader.fetch)
        result = connection.execute(self.statement, given)
        assert result.cursor is not None  # noqa: S101 - it returns rows
        reader.describe(connection.dialect, result.cursor.description)
        rows = reader.fetch(result.cursor)
        result.close()
        self._is_new = False
        return rows

    def count(self, connection: sa.Connection, given: Given) -> int:
        """How many rows it has written."""
        text = self._text_for(connection, given)
        if text is not None:
            return _sent(text, connection, given, _rowcount)
        with connection.execute(self.statement, given) as result:
            self._is_new = False
            return int(result.rowcount)

    def _text_for(self, connection: sa.Connection, given: Given) -> Text | None:
        """None: SQLAlchemy is to send it. The first time always, so that what is sent once is not compiled for that."""
        if self._is_new or not FAST_PATH or not _is_straight(connection):
            return None
        if self._text is None:
            self._text = text_of(self.statement, connection.dialect, given)
        return self._text if self._text.is_whole else None


@dataclass(frozen=True)
class Text:
    """What a driver's cursor is given."""

    string: str
    fixed: Given
    """Those parameters whose values the statement knows, as the driver takes them."""
    asked: Sequence[tuple[str, str, Callable[[Any], Any] | None]]
    """The name of each of the others in the text, and as it is given; and what makes the driver's value of a given."""
    order: Sequence[str] | None
    """The names in the text where a driver takes its parameters by place."""
    is_whole: bool
    """Whether that is all: SQLAlchemy may have something to write or to compute for each time it is sent."""

    def parameters(self, given: Given) -> Any:
        """The parameters, in the form that the driver takes."""
        values = dict(self.fixed)
        for name, key, convert in self.asked:
            values[name] = given[key] if convert is None else convert(given[key])
        return values if self.order is None else tuple(values[name] for name in self.order)


def text_of(statement: Any, dialect: sa.Dialect, given: Given) -> Text:
    """What SQLAlchemy sends for a statement and parameters of these names."""
    compiled = statement.compile(dialect=dialect, column_keys=sorted(given))
    order = compiled.positiontup if compiled.positional else None
    fixed, asked = {}, []
    for bind, name in compiled.bind_names.items():
        convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
        written = name if compiled.positional else compiled.escaped_bind_names.get(name, name)
        if bind.key in given:
            asked.append((written, bind.key, convert))
        else:
            fixed[written] = bind.value if convert is None else convert(bind.value)
    return Text(compiled.string, fixed, asked, order, _is_whole(compiled))


def _is_whole(compiled: SQLCompiler) -> bool:
    written = compiled.post_compile_params or compiled.literal_execute_params
    called = any(bind.callable for bind in compiled.bind_names)
    computed = compiled.insert_prefetch or compiled.update_prefetch or called
    declared = compiled.dialect.bind_typing is BindTyping.SETINPUTSIZES
    return not (written or computed or declared or compiled.has_out_parameters)


def _is_straight(connection: sa.Connection) -> bool:
    """Whether nobody has a part in what this connection sends, and its transaction is as it should be.

    What SQLAlchemy itself asks before each statement; it has no public name for some of that.
    """
    engine, dialect = connection.engine, connection.dialect
    if connection._has_events or engine._has_events or dialect._has_events or connection._echo:
        return False
    translated = "schema_translate_map" in connection.get_execution_options()
    if translated or connection.get_nested_transaction() is not None:
        return False
    return connection.in_transaction() or (connection.get_transaction() is None and _commits_by_itself(connection))


def _commits_by_itself(connection: sa.Connection) -> bool:
    """Whether each statement is a transaction. The driver knows it; the connection's options tell of its beginning."""
    line = connection.connection.dbapi_connection
    try:
        return line is not None and bool(connection.dialect.detect_autocommit_setting(line))
    except NotImplementedError:
        return False


def _sent(text: Text, connection: sa.Connection, given: Given, take: Callable[[Any], Taken]) -> Taken:
    """Send it, and what is taken from the driver's cursor then."""
    line = connection.connection
    cursor = parameters = None
    try:
        parameters = text.parameters(given)
        cursor = line.cursor()
        connection.dialect.do_execute(cursor, text.string, parameters)
        taken = take(cursor)
        cursor.close()
    except BaseException as error:
        # As SQLAlchemy does: the error is its own, and a connection that is broken or was interrupted is used no more.
        connection._handle_dbapi_exception(error, text.string, parameters, cursor, None)
    return taken


def _rowcount(cursor: Any) -> int:
    return int(cursor.rowcount)
