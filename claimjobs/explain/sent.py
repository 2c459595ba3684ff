"""A statement as SQLAlchemy would send it: the text and the parameters that the driver would get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import sqlalchemy as sa


class _Caught(Exception):
    """Ends the execution of a statement before the driver gets it."""

    def __init__(self, sql: str, parameters: Any) -> None:
        super().__init__(sql)
        self.sql, self.parameters = sql, parameters


def as_sent(connection: sa.Connection, statement: Any, values: Mapping[str, Any]) -> tuple[str, Any]:
    """The text and the parameters of a statement. Nothing is sent.

    EXPLAIN is written before this text: compiled by itself, a statement can differ from what a claim sends.
    """
    sa.event.listen(connection, "before_cursor_execute", _catch)
    try:
        connection.execute(statement, values)
    except _Caught as caught:
        return caught.sql, caught.parameters
    finally:
        sa.event.remove(connection, "before_cursor_execute", _catch)
    raise AssertionError("SQLAlchemy sent nothing")


def _catch(_connection: Any, _cursor: Any, sql: str, parameters: Any, _context: Any, _many: bool) -> NoReturn:
    raise _Caught(sql, parameters)
