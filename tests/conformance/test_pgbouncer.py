"""A real PgBouncer in each of its modes: the distribution's package, which may be too old for prepared statements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import make, side_car_tables
from claimjobs.database import session_sharing
from claimjobs.database.connect import engine_of
from claimjobs.dialects import DIALECTS
from claimjobs.errors import ConnectionFailed, SessionsShared
from claimjobs.options import Liveness
from servers.errors import Unavailable
from servers.pgbouncer import Mode, pgbouncer
from tests.backends import Backend, KeepingQueue, wait_for
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import hold_of, states, still
from tests.conformance.sleepers import Consumer

LEFT = sa.text(
    "SELECT name || ' = ' || setting FROM pg_settings "
    "WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding') "  # the pooler sets these itself
    "UNION ALL SELECT 'advisory lock ' || objid FROM pg_locks WHERE locktype = 'advisory' "
    "UNION ALL SELECT 'listens to ' || channel FROM pg_listening_channels() AS channel "
    "UNION ALL SELECT 'prepared ' || statement FROM pg_prepared_statements"
)
OFTEN = 12
"""psycopg prepares what it has sent five times."""
MODES = pytest.mark.parametrize("mode", ["session", "transaction"])
HOLDS = pytest.mark.parametrize("hold", ["lease", "transaction"])


@contextmanager
def pooled(backend: Backend, mode: Mode, size: int = 3) -> Iterator[str]:
    """A URL of this database through a PgBouncer; skips the test where there is none."""
    try:
        opened = pgbouncer(backend.url, mode, size)
        pooler = opened.__enter__()
    except Unavailable as error:
        pytest.skip(f"no PgBouncer: {error}")
    try:
        yield pooler.url
    finally:
        opened.__exit__(None, None, None)


@contextmanager
def engine(url: str) -> Iterator[sa.Engine]:
    """One of claimjobs' own making; its connections end with the block, before the pooler does."""
    made = engine_of(url)
    try:
        yield made
    finally:
        made.dispose()


@MODES
@HOLDS
def test_every_job_is_done_once_however_often_a_statement_is_sent(anywhere: Backend, mode: Mode, hold: str) -> None:
    anywhere.make()
    done: list[str] = []
    with pooled(anywhere, mode, size=6) as url, engine(url) as through:
        queues = [KeepingQueue(through, hold=hold) for _ in range(2)]
        for number in range(OFTEN):
            for queue in queues:
                queue.enqueue(jobs(1, e=f"{number}"))
                queue.enqueue(jobs(3, e=f"{number}"))
        for _ in range(4 * OFTEN):
            for queue in queues:
                with queue.claim(1) as batch:
                    done += names(batch)
                    batch.done()
        for queue in queues:
            assert not queue.report.transients
            queue.close()
    assert len(done) == 8 * OFTEN
    assert anywhere.rows() == []


@MODES
def test_nothing_is_prepared_on_a_pooled_connection(anywhere: Backend, mode: Mode) -> None:
    anywhere.make()
    with pooled(anywhere, mode) as url, engine(url) as through, KeepingQueue(through) as queue:
        for _ in range(OFTEN):
            queue.enqueue(jobs(1))
            with queue.claim(1) as batch:
                batch.done()
        connection = hold_of(queue)._connector._connection
        assert connection is not None
        with through.connect() as of_a_producer:
            for one in (connection, of_a_producer):
                assert one.connection.driver_connection.prepare_threshold is None  # type: ignore[union-attr]
    with engine(anywhere.url) as direct, KeepingQueue(direct) as queue:
        assert queue.claim(1) is not None
        own = hold_of(queue)._connector._connection
        assert own is not None
        assert own.connection.driver_connection.prepare_threshold is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{}, {"claims": "batches"}, {"hold": "transaction"}, {"side_car": True}], ids=str)
def test_a_stranger_inherits_nothing_in_a_session_of_the_pool(anywhere: Backend, options: dict[str, Any]) -> None:
    """The pool has so few sessions that the stranger gets one in which claimjobs worked."""
    anywhere.make()
    make(anywhere.engine, side_car_tables(anywhere.engine, "jobs"))
    with pooled(anywhere, "transaction") as url, engine(url) as through, KeepingQueue(through, **options) as queue:
        queue.enqueue(jobs(6))
        with Consumer(anywhere, queue, poll=0.1) as consumer:
            wait_for(lambda: len(consumer.done) == 6, "it works")
            queue.enqueue({"d": "later", "e": ""})
            wait_for(lambda: consumer.done[-1] == "later", "it was idle, and works again")
        explained = queue.explain(analyze=True, seconds=60)
        assert "a pooler is in between" in next(one.says for one in explained.findings if one.check == "wake")
        assert [_left_in_session(url) for _ in range(4)] == [[]] * 4


def _left_in_session(url: str) -> list[str]:
    """What differs from a new session in the one that a new client gets, and the advisory locks of all sessions."""
    stranger = sa.create_engine(url, poolclass=sa.NullPool)
    with stranger.connect() as connection:
        return [str(row[0]) for row in connection.execute(LEFT)]


def test_a_loop_ends_its_work_and_waits_for_more(anywhere: Backend) -> None:
    anywhere.make()
    with pooled(anywhere, "transaction") as url, engine(url) as through, KeepingQueue(through) as queue:
        queue.enqueue(jobs(3))
        with Consumer(anywhere, queue, poll=0.1) as consumer:
            consumer.does("0000", "0001", "0002")
            queue.enqueue({"d": "later", "e": ""})
            wait_for(lambda: consumer.done[-1] == "later", "it finds more")
        assert not hold_of(queue).owner.row.locked


def test_a_dead_consumers_jobs_come_back_when_its_lease_is_over(anywhere: Backend) -> None:
    anywhere.make()
    quick = Liveness(lease=2.0)
    with pooled(anywhere, "transaction", size=5) as url, engine(url) as through:
        dead = still(KeepingQueue(through, liveness=quick))
        dead.enqueue(jobs(2))
        batch = dead.claim(2)
        with KeepingQueue(through, liveness=quick) as living:
            assert living.owner_id
            wait_for(lambda: states(anywhere) == ["unclaimed"] * 2, "they come back")
            batch.settle()
            assert batch.lost == batch.jobs
        dead.close()


def test_in_statement_mode_it_is_told_which_mode_is_needed(anywhere: Backend) -> None:
    anywhere.make()
    with pooled(anywhere, "statement") as url:
        with engine(url) as through, pytest.raises(ConnectionFailed, match="pool mode to transaction or session"):
            KeepingQueue(through).claim()
        ended = claimjobs("status", "--url", url)
        assert ended.code == 3
        assert "set its pool mode to transaction or session" in ended.err


@pytest.mark.parametrize("size", [1, 3])
def test_a_session_lock_is_refused_where_sessions_are_shared(anywhere: Backend, size: int) -> None:
    anywhere.make()
    locked = Liveness(session_lock=True)
    with pooled(anywhere, "transaction", size) as url:
        with engine(url) as through, KeepingQueue(through, liveness=locked) as queue:
            for begin in (queue.check, queue.claim):
                with pytest.raises(SessionsShared, match="session lock cannot work here: another client gets session"):
                    begin()
        ended = claimjobs("start-processing", "--session-lock", "on", "--url", url)
        assert (ended.code, "`--session-lock auto`" in ended.err) == (3, True)
        assert _left_in_session(url) == []


def test_a_session_lock_is_refused_where_a_full_pool_hides_that_sessions_are_shared(
    anywhere: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    anywhere.make()
    monkeypatch.setattr(session_sharing, "POOLER_SECONDS", 0.2)
    with pooled(anywhere, "session", size=2) as url, engine(url) as through, engine(url) as of_a_stranger:
        queue = KeepingQueue(through, liveness=Liveness(session_lock=True))
        late = pytest.raises(SessionsShared, match=r"no session for a second connection within 0\.2 s")
        with of_a_stranger.connect(), queue, late:
            queue.check()


def test_behind_a_pooler_by_session_locks_and_calls_work_if_they_are_switched_on(anywhere: Backend) -> None:
    anywhere.make()
    locked = Liveness(session_lock=True)
    with pooled(anywhere, "session", size=8) as url, engine(url) as through:
        queue = KeepingQueue(through, liveness=locked)
        with queue, Consumer(anywhere, queue) as consumer:
            wait_for(lambda: hold_of(queue).owner.row.locked, "it has its lock")
            consumer.falls_asleep()
            queue.enqueue({"d": "it is called", "e": ""})
            consumer.does("it is called")
        wait_for(lambda: _left_in_session(url) == [], "the pooler has reset the session")


def test_behind_a_pooler_by_session_with_locks_a_death_is_seen_before_the_lease_is_over(anywhere: Backend) -> None:
    anywhere.make()
    long = Liveness(lease=300.0, session_lock=True)
    with (
        pooled(anywhere, "session", size=8) as url,
        engine(url) as through,
        KeepingQueue(through, liveness=long) as living,
    ):
        assert living.owner_id
        dead = still(KeepingQueue(through, liveness=long))
        dead.enqueue(jobs(2))
        dead.claim(2)
        hold_of(dead)._connector._break()
        wait_for(lambda: states(anywhere) == ["unclaimed"] * 2, "they come back")
        dead.close()


@pytest.mark.parametrize("code", ["26000", "42P05"])
def test_what_an_engine_of_the_users_has_prepared_elsewhere_is_tried_again(code: str) -> None:
    error = Exception()
    error.sqlstate = code  # type: ignore[attr-defined]
    assert DIALECTS["postgresql"]().errors.transient_kind(error) == "prepared statement"
