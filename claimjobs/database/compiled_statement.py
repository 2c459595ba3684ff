"""A statement of a claim or a settle, sent to the driver as the text that SQLAlchemy compiled.

A consumer sends a few statements again and again. For each, SQLAlchemy looks up the compiled text, describes the result
and calls listeners: nearly a third of a consumer's computing for a batch (docs/decisions/0025). So SQLAlchemy sends a
statement the first time. After that it does so only if the engine has listeners, logs, or changes statements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import BindTyping

from claimjobs.database.transactions import commits_by_itself
from claimjobs.dialects.sessions import Sessions

WORD: Final = re.compile(r"[A-Za-z0-9_]*")
"""Texts that need no quoting."""

MOST_TEXTS: Final = 100
"""Texts of one statement that are kept: a program may claim batches of ever other sizes."""

Taken = TypeVar("Taken")
Given = Mapping[str, Any]
"""Values by the names of parameters. A statement gets values for the same names each time."""


class Reader(Protocol):
    """Reads the rows of a statement."""

    def describe(self, dialect: sa.Dialect, description: Sequence[Any]) -> None:
        """Learn how the driver describes the columns of a result, as in PEP 249."""

    def fetch(self, cursor: Any) -> Sequence[Any]:
        """All rows of a driver's cursor."""


class CompiledStatement:
    """A statement that is sent often. It raises SQLAlchemy's errors, also if SQLAlchemy does not send it."""

    def __init__(self, statement: Any, constant: str = "") -> None:
        """`constant`: a parameter whose value rarely changes. There is a text for each value: see `_written_out`."""
        self.statement = statement
        self._constant = constant
        self._is_new = True
        """Whether it was never sent: SQLAlchemy sends it the first time, which may be the only one."""
        self._texts: dict[Any, Text] = {}
        """The texts by the value of the constant."""

    def rows(self, connection: sa.Connection, given: Given, reader: Reader | None = None) -> Sequence[Any]:
        """All rows of its result, as the driver returns them. The reader learns their columns before the first row."""
        fetch = _all_rows if reader is None else reader.fetch
        text = None if self._is_new else self.text_for(connection, given)
        if text is not None:
            return _sent(text, connection, given, fetch)
        with connection.execute(self.statement, given) as result:
            assert result.cursor is not None  # noqa: S101 - it returns rows
            if reader is not None:
                reader.describe(connection.dialect, result.cursor.description)
            rows = fetch(result.cursor)
        self._is_new = False
        return rows

    def count(self, connection: sa.Connection, given: Given) -> int:
        """Send it; how many rows it has written."""
        text = None if self._is_new else self.text_for(connection, given)
        if text is not None:
            return _sent(text, connection, given, lambda cursor: int(cursor.rowcount))
        with connection.execute(self.statement, given) as result:
            self._is_new = False
            return int(result.rowcount)

    def text_for(self, connection: sa.Connection, given: Given) -> Text | None:
        """The text to send; None: SQLAlchemy must send it."""
        if not _is_straight(connection):
            return None
        text = self._texts.get(given.get(self._constant))
        if text is None:
            if len(self._texts) == MOST_TEXTS:
                self._texts.clear()
            text = text_of(self.statement, connection.dialect, given, self._constant)
            self._texts[given.get(self._constant)] = text
        return text if text.is_complete else None


@dataclass(frozen=True)
class Text:
    """The text and the parameters for a driver's cursor."""

    string: str
    fixed: Given
    """The parameters whose values the statement contains, as the driver takes them."""
    asked: Sequence[tuple[str, str, Callable[[Any], Any] | None]]
    """For each other parameter: its name in the text, its name for the caller, and what converts its value."""
    order: Sequence[str] | None
    """The names in the order of the text, if the driver takes parameters by position."""
    is_complete: bool
    """False: SQLAlchemy must change the text or compute values each time the statement is sent."""

    def parameters(self, given: Given) -> Any:
        """The parameters, in the form that the driver takes."""
        values = dict(self.fixed)
        for name, key, convert in self.asked:
            values[name] = given[key] if convert is None else convert(given[key])
        return values if self.order is None else tuple(values[name] for name in self.order)


def text_of(statement: Any, dialect: sa.Dialect, given: Given, constant: str = "") -> Text:
    """The text that SQLAlchemy sends for a statement and parameters with these names, with its constants written out.

    `constant`: a parameter that is one of them, too.
    """
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
    changes = compiled.post_compile_params or compiled.literal_execute_params
    called = any(bind.callable for bind in compiled.bind_names)
    computed = compiled.insert_prefetch or compiled.update_prefetch or called
    declared = dialect.bind_typing is BindTyping.SETINPUTSIZES
    is_complete = not (changes or computed or declared or compiled.has_out_parameters)
    text = Text(compiled.string, fixed, asked, order, is_complete)
    return _written_out(text, given, constant) if is_complete and order is None else text


def _written_out(text: Text, given: Given, constant: str) -> Text:
    """The text with its constants instead of parameters for them; unchanged if one of them cannot be written.

    Only a driver that prepares statements takes parameters by name. The server plans a prepared statement once for all
    values of its parameters if that plan looks as good as one for known values. It never does while the LIMIT is a
    parameter, so the server would plan again each time, which takes longer than a claim of ten jobs. With a known LIMIT
    it is as good only if the planner knows all other constants, too.
    """
    chosen = {name: given[key] for name, key, _ in text.asked if key == constant}
    written: dict[str, str] = {}
    for name, value in {**text.fixed, **chosen}.items():
        if type(value) is int:
            written[name] = f"({value})" if value < 0 else str(value)
        elif type(value) is str and WORD.fullmatch(value):  # an enum prints another text
            written[name] = f"'{value}'"
        else:
            return text
    asked = [part for part in text.asked if part[0] not in written]
    placeholders = {name: f"%({name})s" for name, _, _ in asked}
    return Text(text.string.replace("%%", "%%%%") % {**placeholders, **written}, {}, asked, None, True)


def _is_straight(connection: sa.Connection) -> bool:
    """Whether nothing changes, logs or listens to what this connection sends, and its transaction has begun.

    SQLAlchemy checks this before each statement; some of it has no public name.
    """
    engine, heard = connection.engine, connection.dialect.dispatch
    if connection._has_events or engine._has_events or connection._echo:
        return False
    if heard.do_execute or heard.do_execute_no_params or heard.do_setinputsizes:  # others do not hear of a statement
        return False
    translated = "schema_translate_map" in connection.get_execution_options()
    if translated or connection.get_nested_transaction() is not None:
        return False
    if connection.in_transaction():
        return True
    return connection.get_transaction() is None and commits_by_itself(connection, unknown=False)


def _sent(text: Text, connection: sa.Connection, given: Given, take: Callable[[Any], Taken]) -> Taken:
    driver_connection = connection.connection
    cursor = parameters = None
    try:
        parameters = text.parameters(given)
        cursor = driver_connection.cursor()
        connection.dialect.do_execute(cursor, text.string, parameters)
        taken = take(cursor)
        cursor.close()
    except BaseException as error:
        # SQLAlchemy translates the error, and invalidates a connection that is broken or was interrupted.
        connection._handle_dbapi_exception(error, text.string, parameters, cursor, None)
    return taken


class Sent(NamedTuple):
    """A statement, its parameters, and what reads its rows; None: they are read as they are."""

    statement: CompiledStatement
    given: Given
    reader: Reader | None = None


def rows_together(connection: sa.Connection, sessions: Sessions, sent: Sequence[Sent]) -> list[Sequence[Any]] | None:
    """Send several statements before the first answer is read, in one round trip; return the rows of each.

    In autocommit they are one transaction. None: nothing was sent, because SQLAlchemy must send one of them, or because
    the driver has no pipeline.
    """
    texts = [text for each in sent if (text := each.statement.text_for(connection, each.given)) is not None]
    if len(texts) < len(sent) or (pipeline := sessions.pipeline(connection.connection.driver_connection)) is None:
        return None
    cursors: list[Any] = []
    try:
        with pipeline:
            for text, each in zip(texts, sent, strict=True):
                cursors.append(connection.connection.cursor())
                connection.dialect.do_execute(cursors[-1], text.string, text.parameters(each.given))
        rows = [
            _all_rows(cursor) if each.reader is None else each.reader.fetch(cursor)
            for cursor, each in zip(cursors, sent, strict=True)
        ]
    except BaseException as error:
        connection._handle_dbapi_exception(error, "; ".join(each.string for each in texts), None, None, None)
    return rows


def _all_rows(cursor: Any) -> Sequence[Any]:
    rows: Sequence[Any] = cursor.fetchall()
    return rows
