"""Errors of the server's own, raised where a test wants one: no driver and no database is imitated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
def refused_after(
    engine: sa.Engine, word: str, statement: str, *, event: str = "after_cursor_execute"
) -> Iterator[None]:
    """Once, after the next statement that holds this word, its connection is sent another one, which fails."""
    armed = [statement]

    def refuse(connection: sa.Connection, _cursor: Any, sent: str, *_: Any) -> None:
        if word in sent and armed:
            connection.exec_driver_sql(armed.pop()).close()

    sa.event.listen(engine, event, refuse)
    try:
        yield
    finally:
        sa.event.remove(engine, event, refuse)
    assert not armed


def refused_before(engine: sa.Engine, word: str, statement: str) -> AbstractContextManager[None]:
    """As `refused_after`, in place of that statement: it is sent with the next attempt only."""
    return refused_after(engine, word, statement, event="before_cursor_execute")


def refuse_where(backend: Backend, when: str, condition: str, words: str) -> None:
    """A trigger `refuse`, such as before each `UPDATE ON jobs`, refuses the rows of which this is true."""
    if backend.has("swallowing triggers"):
        body = f"BEGIN IF {condition} THEN RAISE EXCEPTION '{words}'; END IF; RETURN COALESCE(NEW, OLD); END"
        backend.run(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        how = "EXECUTE FUNCTION refuse()"
    else:
        how = f"BEGIN IF {condition} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{words}'; END IF; END"
    backend.run(f"CREATE TRIGGER refuse BEFORE {when} FOR EACH ROW {how}")
