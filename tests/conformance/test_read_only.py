"""A server refuses writes for a while, or it is no primary: consumers wait, and a start says so at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.dialects import DIALECTS
from claimjobs.errors import ReadOnly
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs
from tests.conformance.members import limited_user, set_read_only
from tests.conformance.sleepers import PATIENT, Consumer


def test_consumers_outlive_it_and_no_job_is_done_twice(own: Backend) -> None:
    own.make()
    own.queue().enqueue(jobs(400))
    with limited_user(own, 40) as url, _queue(own, url) as first, _queue(own, url) as second:
        with _consumer(own, first) as one, _consumer(own, second) as other:
            for enough in (50, 150):
                _await_work(own, one, other, enough)
                known = _refusals(first), _refusals(second)
                set_read_only(own, "ON")
                try:
                    _await_refusal(own, first, known[0])
                    _await_refusal(own, second, known[1])
                finally:
                    set_read_only(own, "OFF")
            own.wait_for(lambda: not own.rows(), "they go on to the end")
        assert sorted(one.done + other.done) == [job["d"] for job in jobs(400)]
        assert first.report.lost == second.report.lost == 0


def _queue(own: Backend, url: str) -> Queue:
    return own.bare_queue(bind=own.new_engine_to(url), liveness=PATIENT)


def _await_work(own: Backend, one: Consumer, other: Consumer, jobs_done: int) -> None:
    own.wait_for(lambda: len(one.done + other.done) > jobs_done, "they work")


def _await_refusal(own: Backend, queue: Queue, known: int) -> None:
    own.wait_for(lambda: _refusals(queue) > known, "it is refused")


def _refusals(queue: Queue) -> int:
    return queue.report.transients["read only"]


def _consumer(own: Backend, queue: Queue) -> Consumer:
    return Consumer(own, queue, size=5, poll=0.1)


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_a_server_that_was_read_only_when_a_transaction_began_is_no_setting_of_the_engine(
    backend: Backend, hold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changed before it was asked. What is so on the next connection, too, is a setting."""
    found = iter([("read_only = 1", "SET read_only = 0")])
    monkeypatch.setattr(type(backend.dialect.sessions), "read_only_setting", lambda *_: next(found, None))
    queue = backend.queue(hold=hold)
    queue.enqueue(jobs(1))
    assert len(queue.claim(1)) == 1
    assert next(found, None) is None


def test_one_refused_enqueue_replaces_all_pooled_connections(own: Backend) -> None:
    """They lead to the primary of before a failover, which still answers: the next ones lead to another server."""
    own.make()
    with limited_user(own, 9) as url:
        queue = Queue(url)
        before = _pooled(queue.engine)
        set_read_only(own, "ON")
        try:
            with pytest.raises(sa.exc.DBAPIError) as raised:
                queue.enqueue(jobs(1))
        finally:
            set_read_only(own, "OFF")
        assert raised.value.connection_invalidated
        assert not before & _pooled(queue.engine)
        assert queue.enqueue(jobs(1)) == 1
        queue.engine.dispose()


def _pooled(engine: sa.Engine) -> set[Any]:
    """Two connections of the driver's that are in the pool."""
    with engine.connect() as one, engine.connect() as other:
        return {one.connection.driver_connection, other.connection.driver_connection}


def test_one_refused_enqueue_gives_up_its_connection_of_the_users_engine(own: Backend) -> None:
    own.make()
    with limited_user(own, 9) as url:
        queue = Queue(own.new_engine_to(url))
        before = _pooled(queue.engine)
        set_read_only(own, "ON")
        try:
            for _ in before:
                with pytest.raises(sa.exc.DBAPIError):
                    queue.enqueue(jobs(1))
        finally:
            set_read_only(own, "OFF")
        assert not before & _pooled(queue.engine)


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_a_start_says_so_at_once(own: Backend, hold: str) -> None:
    own.make()
    with limited_user(own, 9) as url:
        set_read_only(own, "ON")
        try:
            ended = claimjobs("start-processing", "tests.process.work:fine", "--hold", hold, "--url", url)
            with pytest.raises(ReadOnly), Queue(url, hold=hold) as queue:  # type: ignore[arg-type]
                queue.check()
            queue.engine.dispose()
            status = claimjobs("status", "--url", url)
        finally:
            set_read_only(own, "OFF")
        assert ended.code == 3
        assert "because the server is read-only" in ended.err
        assert "check that the URL leads to the primary" in ended.err
        assert status.code == 0, "what only reads works on a standby"


def test_a_url_with_hosts_passes_over_members_that_take_no_writes(own: Backend, free: int) -> None:
    """And over those that do not answer; a wrong password is told at once."""
    own.make()
    hosts = {"host": (f"127.0.0.1:{free}", f"127.0.0.1:{sa.make_url(own.url).port}")}
    if own.family == "postgres":
        hosts["target_session_attrs"] = "read-write"  # type: ignore[assignment]
    url = sa.make_url(own.url)._replace(host=None, port=None).update_query_dict(hosts)
    text = url.render_as_string(hide_password=False)
    assert claimjobs("status", "--url", text).code == 0
    set_read_only(own, "ON")
    try:
        ended = claimjobs("status", "--url", text)
    finally:
        set_read_only(own, "OFF")
    assert ended.code == 3
    assert "no server of this URL takes writes" in ended.err
    assert "wait until one is promoted, or add the primary to the URL" in ended.err
    ended = claimjobs("status", "--url", url.set(password="geheim7").render_as_string(hide_password=False))
    assert "check user, password and their rights" in ended.err
    assert "geheim7" not in ended.said
    nobody = url.update_query_dict({"host": (f"127.0.0.1:{free}", f"127.0.0.1:{free}")})
    assert "check host and port" in claimjobs("status", "--url", nobody.render_as_string(hide_password=False)).err


@pytest.fixture
def free() -> Iterator[int]:
    """A port on which nobody listens: bound, so that nobody else can take it."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield nobody.getsockname()[1]


def test_an_account_that_read_only_does_not_bind_may_start(own: Backend) -> None:
    if own.family == "postgres":
        pytest.skip("every account is bound")
    own.make()
    set_read_only(own, "ON")
    try:
        own.bare_queue().check()
    finally:
        set_read_only(own, "OFF")


@pytest.mark.parametrize(
    ("number", "said", "kind"),
    [
        (1290, "The MySQL server is running with the --super-read-only option", "read only"),
        (1290, "The MariaDB server is running with the --read-only option", "read only"),
        (1290, "The MySQL server is running with the --secure-file-priv option", None),
        (1836, "Running in read-only mode", "read only"),
        (1047, "WSREP has not yet prepared node for application use", "server unavailable"),
        (3100, "Error on observer while running replication hook 'before_commit'.", "server unavailable"),
    ],
)
def test_what_a_member_says_that_takes_no_writes(number: int, said: str, kind: str | None) -> None:
    assert DIALECTS["mysql"]().errors.broken_kind(Exception(number, said)) == kind
