"""Errors of the server's own, raised where a test wants one: no driver and no database is imitated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from tests.backends import Backend


def refusal(backend: Backend, kind: str) -> str:
    """A statement that the server answers with an error of this kind ("deadlock", "serialization", ...)."""
    code = next(code for code, name in backend.dialect.errors.transient.items() if name == kind)
    if backend.family == "postgres":
        return f"DO $$BEGIN RAISE SQLSTATE '{code}'; END$$"
    return f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}"


@contextmanager
def refused_after(engine: sa.Engine, word: str, statement: str) -> Iterator[None]:
    """Once, after the next statement that holds this word, its connection is sent another one, which fails."""
    armed = [statement]

    def answered(connection: sa.Connection, _cursor: Any, sent: str, *_: Any) -> None:
        if word in sent and armed:
            connection.exec_driver_sql(armed.pop()).close()

    sa.event.listen(engine, "after_cursor_execute", answered)
    try:
        yield
    finally:
        sa.event.remove(engine, "after_cursor_execute", answered)
    assert not armed
