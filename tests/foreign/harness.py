"""The harness: two queues claim and settle all rows of a case, with a bound on how many batches that may take."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue, make
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.table.create import side_car_tables
from claimjobs.table.definitions import shared_tables
from tests.backends import Backend, Servers
from tests.flavours import Family
from tests.foreign.cases import QUEUE, Case, Way

OPTIONS: dict[Way, dict[str, Any]] = {
    "lease": {"on_done": "delete"},
    "transaction": {"on_done": "delete", "hold": "transaction"},
    "side-car": {"on_done": "keep", "side_car": True},
    "advisory": {"on_done": "delete", "hold": "transaction", "locking": AdvisoryLocks()},
}
SIZE = 3
"""Jobs of a batch: a few batches for each case."""


class Places:
    """A database on each server for all cases of a file, made when a first case asks for it."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._lent: dict[Family, Backend] = {}
        self._engines: dict[tuple[Family, tuple[str, ...]], sa.Engine] = {}
        self._count = 0

    def at(self, family: Family) -> Backend:
        """The database on this server."""
        if family not in self._lent:
            self._lent[family] = self._servers.lend(family)
            make(self._lent[family].engine, shared_tables())
        return self._lent[family]

    def engine(self, family: Family, settings: Sequence[str]) -> sa.Engine:
        """One for all cases with the same settings: they share what SQLAlchemy has asked, and compiled, before."""
        wanted = (family, tuple(settings))
        if wanted not in self._engines:
            self._engines[wanted] = _engine(self.at(family), settings)
        return self._engines[wanted]

    def name(self) -> str:
        """A name that no table has, of four characters."""
        self._count += 1
        return f"t{self._count:03}"

    def close(self) -> None:
        """Remove the databases, and fail for whatever was left open."""
        for place in self._lent.values():
            place.close()


def run(places: Places, family: Family, way: Way, case: Case) -> None:
    """Run a case to its end, which must be the one that it names."""
    place, name = places.at(family), f"{case.table}{places.name()}"
    engine = places.engine(family, case.settings)
    try:
        with _queues(engine, name, way, case=case) as queues:
            _ends_as_it_should(place, name, way, case=case, queues=queues)
    finally:
        with place.engine.connect() as connection:
            for statement in case.undo:
                _send(connection, _sql(statement, place, name))
            connection.commit()


def _ends_as_it_should(place: Backend, name: str, way: Way, *, case: Case, queues: list[Queue]) -> None:
    expected = case.refusal(way)
    if expected is None:
        done = _from_end_to_end(place, name, way, case=case, queues=queues)
        assert sorted(done.elements()) == list(range(case.count - case.unclaimed)), f"not each row once: {dict(done)}"
        _nothing_is_left(place, name, way, case)
    else:
        with pytest.raises(expected) as raised:
            _from_end_to_end(place, name, way, case=case, queues=queues)
        _is_clear(str(raised.value), case.names or name.rpartition(".")[2])


def _from_end_to_end(place: Backend, name: str, way: Way, *, case: Case, queues: list[Queue]) -> Counter[int]:
    _make(place, name, way, case=case, engine=queues[0].engine)
    _look_once(queues)
    return _drain(queues, case.count)


def _is_clear(message: str, name: str) -> None:
    """Names the table, or what else is at fault, and says a next step."""
    assert name in message, message
    assert ": " in message, message


# --- before ----------------------------------------------------------------------------------------------------------


def _make(place: Backend, name: str, way: Way, *, case: Case, engine: sa.Engine) -> None:
    statements = (case.make,) if isinstance(case.make, str) else case.make
    with place.engine.connect() as connection:
        for statement in filter(None, (*statements, case.rows)):
            _send(connection, _sql(statement, place, name))
        connection.commit()
    if way == "side-car":
        make(engine, side_car_tables(engine, name, columns=case.columns))
    elif case.schema is not None:
        make(engine, shared_tables(case.schema))


def _send(connection: sa.Connection, statement: str) -> None:
    # Without parameters a driver leaves a percent sign as it is.
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).close()


def _sql(statement: str, place: Backend, name: str) -> str:
    written = ".".join(map(place.engine.dialect.identifier_preparer.quote, name.split("."))).replace("%%", "%")
    return statement.replace("{t}", written).replace("{queue}", QUEUE[place.family])


@contextlib.contextmanager
def _queues(engine: sa.Engine, name: str, way: Way, *, case: Case) -> Iterator[list[Queue]]:
    """Two consumers. Each claims through a connection of its own: of a pool they have none in common."""
    with contextlib.ExitStack() as stack:
        queues = [Queue(engine, name, columns=case.columns, **OPTIONS[way], **case.options) for _ in range(2)]
        for queue in queues:
            stack.callback(queue.close)
        yield queues


def _look_once(queues: list[Queue]) -> None:
    """Look at the table for the first consumer; the other has found the same, at a third of the time of a case."""
    first, *others = queues
    first.check()
    for queue in others:
        queue._access._backend = first._access._backend


def _engine(place: Backend, settings: Sequence[str]) -> sa.Engine:
    engine = place.new_engine()

    def on_connect(driver_connection: Any, _record: Any) -> None:
        with contextlib.closing(driver_connection.cursor()) as cursor:
            for statement in settings:
                cursor.execute(statement)
        driver_connection.commit()

    if settings:
        sa.event.listen(engine, "connect", on_connect, insert=True)  # before SQLAlchemy asks for them
    return engine


# --- the work --------------------------------------------------------------------------------------------------------


def _drain(queues: list[Queue], count: int) -> Counter[int]:
    """Both claim before either settles, until nothing is left. How often each row was done, by its number.

    The first job of all fails, and is tried again; the last of the first batch is released.
    """
    done: Counter[int] = Counter()
    for turn in range(count + 3):
        first = queues[0].claim(SIZE)
        if not first.jobs:  # nobody holds any now
            return done
        batches = [first, *(queue.claim(SIZE) for queue in queues[1:])]
        for place, batch in enumerate(batches):
            done.update(_settle(batch, fails=turn == place == 0))
    pytest.fail(f"there are jobs still after {turn + 1} batches: {dict(done)}")


def _settle(batch: Batch, *, fails: bool) -> list[int]:
    """The numbers of the jobs that are done."""
    numbers: list[int] = []
    with batch:
        for place, job in enumerate(batch.jobs):
            if fails and place == 0:
                batch.fail(job, "not this time", retry_in=0)
            elif not (fails and place == SIZE - 1):
                batch.done(job)
                numbers.append(job["n"])
    assert not batch.lost
    return numbers


# --- after -----------------------------------------------------------------------------------------------------------


def _nothing_is_left(place: Backend, name: str, way: Way, case: Case) -> None:
    with place.engine.connect() as connection:
        left = _count(connection, _sql(case.left, place, name))
        if way == "side-car":
            assert left == case.count, "rows of a table that must not be altered"
            kept = _count(connection, _sql(case.left, place, f"{name}_claims"))
            assert kept == case.count - case.unclaimed
        else:
            assert left == case.unclaimed


def _count(connection: sa.Connection, statement: str) -> int:
    return int(connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).scalar_one())
