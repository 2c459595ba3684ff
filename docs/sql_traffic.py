"""What a queue sends to a real server on a job's way: each statement with its plan and its row locks."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa

from claimjobs import PerKey, Queue, key_tables, make
from claimjobs.settle.outcomes import Outcomes
from claimjobs.statements import claim_rows
from claimjobs.table.definitions import article_table
from docs.sql_statements import CAST, built, compiled
from tests.backends import Backend
from tests.conformance.owners import declare_dead, hold_of, still

ROWS: Final = 20_000
SIZE: Final = 100

EXPLAIN: Final = {"postgres": "EXPLAIN (COSTS OFF)", "mysql": "EXPLAIN FORMAT=TRADITIONAL", "mariadb": "EXPLAIN"}

UNPLANNED: Final = (
    "isolation",
    "dates",
    "zone",
    "silence",
    "listen",
    "wait",
    "interrupt",
    "settings",
    "register",
    "hold",
    "shown",
    "locked",
    "paused",
    "plans",
    "leave",
    "lead",
    "end session",
    "holder",
    "batch open now",
    "batch locked",
    "batch shorten",
    "batch close all",
    "key wait",
    "key place",
    "key make all next",
)
"""Nothing is to be learned from a plan of these, or there is none."""

ALONE: Final = ("claim", "turn")
"""Statements that are sent without BEGIN and COMMIT."""


@dataclass
class Sent:
    """What went to the server, and what that did."""

    plans: dict[str, str] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)


class Listener:
    """Recognises each statement that an engine sends; explains it, and counts the locks before the commit."""

    def __init__(self, backend: Backend, engine: sa.Engine) -> None:
        self.sent = Sent()
        self._backend = backend
        self._names = {_shape(str(compiled(s, backend.family))): name for name, s in built(backend.family).items()}
        self._shapes = set(self._names)
        self._last = ""
        self._asking = backend.new_engine()
        sa.event.listen(engine, "before_cursor_execute", self._on_statement)
        sa.event.listen(engine, "commit", self._on_commit)

    def not_sent(self) -> list[str]:
        """The statements that nobody has sent yet."""
        return sorted(self._names[shape] for shape in self._shapes)

    def _on_statement(self, _connection: Any, _cursor: Any, statement: str, values: Any, _: Any, many: bool) -> None:
        if re.match(r"(?i)(SAVEPOINT|RELEASE|ROLLBACK|DESCRIBE|SHOW|SET autocommit)\b", statement) or _looks_around(
            statement
        ):
            return
        name = self._names.get(_shape(statement))
        if name is None:
            raise SystemExit(f"{self._backend.family}: a statement that is not on the page was sent:\n{statement}")
        self._last = name
        self._shapes.discard(_shape(statement))
        # Once: MySQL reads a single row already to explain, and would wait for the lock that it explains.
        if not many and name not in UNPLANNED and name not in self.sent.plans:
            self.sent.plans[name] = self._plan(statement, values)
            if name in ALONE:
                self.sent.locks[name] = self._locks_of(statement, values)

    def _plan(self, statement: str, values: Any) -> str:
        with self._asking.connect() as connection:
            found = connection.exec_driver_sql(f"{EXPLAIN[self._backend.family]} {statement}", values)
            plan = _table(found.mappings()) if "table" in found.keys() else "\n".join(row[0] for row in found)  # noqa: SIM118
        return re.sub(r"\{(\d+,\d+),[\d,]+,(\d+)\}", r"{\1,...,\2}", plan)

    def _on_commit(self, _connection: Any) -> None:
        if self._last in ("mark", "batch record", "done", "kept", "released", "retried", "dead", "suspects"):
            self.sent.locks.setdefault(self._last, self._locks())

    def _locks_of(self, statement: str, values: Any) -> str:
        """Of one that is a transaction by itself: when it is over nothing is locked any more."""
        with self._asking.connect() as connection:
            connection.exec_driver_sql(statement, values)
            return self._locks()  # and it is rolled back

    def _locks(self) -> str:
        if self._backend.family != "mysql":
            return f"{self._backend.locked()} rows"
        counted = Counter(self._backend.lock_table())
        return ", ".join(f"{count} in `{index}` ({mode})" for (index, mode), count in sorted(counted.items()))


def _looks_around(statement: str) -> bool:
    words = (
        "pg_catalog",
        "pg_attribute",
        "pg_class",
        "pg_settings",
        "transaction_read_only",
        "information_schema",
        "@@",
        "pg_backend_pid()",
        "connection_id()",
        "pg_postmaster_start_time",
    )
    clock = ("SELECT utc_timestamp(6) AS anon_1", "SELECT now() AS anon_1")
    return any(word in statement for word in words) or statement in clock


def _shape(statement: str) -> str:
    """A statement without its parameters' names, casts and number, without collations, and without its spaces."""
    statement = re.sub(r" COLLATE \w+", "", statement)
    shape = re.sub(r"__\[POSTCOMPILE_[^\]]*\]|%\(\w+\)s|%s|(?<!:):\w+", "?", statement)
    shape = re.sub(rf"\?({CAST})", "?", shape)
    shape = re.sub(r"LISTEN claimjobs_\d+|sleep\(.*?\)", "?", shape)
    shape = re.sub(r"\?(, \?)+", "?", shape)
    return " ".join(re.sub(r"\(\?\)(, \(\?\))+", "(?)", shape).split())


def _table(rows: Any) -> str:
    columns = ("table", "type", "key", "rows", "Extra")
    cells = [columns, *(tuple(str(row.get(column) or "") for column in columns) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


# --- a job's way, with every outcome -----------------------------------------------------------------------


def look(backend: Backend) -> Sent:
    """Run a job's way with every outcome."""
    backend.make()
    engine = backend.new_engine()
    listener = Listener(backend, engine)
    with still(Queue(engine, article_table())) as queue:
        queue.enqueue({"d": f"{number:064}", "e": "e" * 64} for number in range(ROWS))
        queue.enqueue([{"d": "few", "e": "rows"}] * 2)  # on Postgres many are sent as data
        backend.analyze()
        for outcome in ("done", "release", "retry", "dead", "lost"):
            _work(queue, outcome, backend)
        _go_on(queue)
        _live(queue)
        _reclaim(queue, backend)
        _bury(queue)
        _cancel(queue)
        queue.claim(1)  # held, and released when the queue is closed
    with still(Queue(engine, article_table(), claims="batches")) as queue:
        _claim_per_batch(queue)
    with still(Queue(engine, article_table(), on_done="keep")) as queue:
        _work(queue, "done", backend)
        backend.run("UPDATE jobs SET owner_date = '2020-01-01 00:00:00' WHERE status = 'done'")
        queue.purge(60)
        _work(queue, "suspects", backend)
    _few_per_key(backend, engine)
    engine.dispose()
    if missing := listener.not_sent():
        raise SystemExit(f"{backend.family}: on the page, but never sent: {', '.join(missing)}")
    return listener.sent


def _few_per_key(backend: Backend, engine: sa.Engine) -> None:
    """A claim of more keys than one page has, one that is held back, one that waits, and one at a rate."""
    jobs = article_table()
    columns = ("status", "d", "priority", "id", "run_at", "suspect")
    sa.Index("jobs_by_d", *(jobs.c[name] for name in columns)).create(backend.engine)
    make(backend.engine, key_tables(backend.engine, jobs, ["d"]))
    backend.run("DELETE FROM jobs WHERE id > 3000")
    backend.analyze()
    one, at_a_rate = PerKey("d", at_most=1), PerKey("d", rate="1/s")
    with still(Queue(engine, article_table(), per_key=one)) as queue:
        _claim_few(queue, backend)
    with still(Queue(engine, article_table(), per_key=at_a_rate)) as queue:
        with queue.claim(SIZE) as batch:
            batch.done()
        queue.claim(SIZE)


def _claim_few(queue: Queue, backend: Backend) -> None:
    for batch in queue.batches(SIZE, drain=True):  # until no key of them has a row
        with batch:
            batch.done()
    backend.run("DELETE FROM jobs")
    backend.run("INSERT INTO jobs (d, e) VALUES ('a', 'x'), ('a', 'x'), ('b', 'x')")
    backend.run("UPDATE jobs SET run_at = '2100-01-01 00:00:00' WHERE d = 'b'")
    with queue.claim(SIZE) as batch:
        assert len(queue.claim(SIZE)) == 0  # noqa: S101 - a limit holds `a` back, and `b` is not due
        batch.done()
    hold_of(queue)._keys.make_all_next()
    backend.run("UPDATE jobs SET status = 'claimed' WHERE d = 'a'")
    backend.run("INSERT INTO jobs (d, e) VALUES ('a', 'x')")
    assert len(queue.claim(SIZE)) == 0  # noqa: S101 - a limit holds `a` back
    backend.run("DELETE FROM jobs WHERE status = 'claimed'")
    with queue.claim(SIZE) as batch:
        batch.release()


def _go_on(queue: Queue) -> None:
    """From batch to batch, from the head and after a place; and a claim that gets fewer jobs than it wants."""
    for count, batch in enumerate(queue.batches(SIZE, where=None)):
        with batch:
            batch.done()
        hold_of(queue).restart_from_head() if count == 1 else None
        if count == 3:
            break
    with queue.claim(SIZE) as batch:
        batch.done()
    for size in (SIZE, ROWS, ROWS):  # after a place, and from the head
        cursor: Any = hold_of(queue)._range._cursor
        cursor._head_at = math.inf  # no claim begins at the head because it is time
        with queue.claim(size) as batch:
            batch.done() if size == SIZE else batch.release()
    cursor._head_at = 0.0


def _claim_per_batch(queue: Queue) -> None:
    """From batch to batch; a batch that is settled as a whole; and one of which a job is settled before the others."""
    for batch in islice(queue.batches(SIZE), 2):
        with batch:
            batch.done()
            hold_of(queue).restart_from_head()
    for _ in range(2):  # from the head, and after a place
        with queue.claim(SIZE) as batch:
            batch.done()
    hand = hold_of(queue)
    hand.restart_from_head()
    with queue.claim(2) as batch:
        first, _ = (job.key for job in batch.jobs)
        _look_again(queue, [first])
        hand._settling.commit(hand.owner.id, Outcomes(done={first: {}}))
        batch.done()


def _look_again(queue: Queue, keys: list[Any]) -> None:
    """It is sent by itself: two claims that meet at one job cannot be had at will."""
    ours = hold_of(queue)._backend.roles.claim_rows
    assert ours is not None  # noqa: S101 - claims="batches"
    hold_of(queue)._connector.rows(claim_rows.open_now(ours), {"claimjobs_keys": keys, **ours.range_of(keys)})


def _live(queue: Queue) -> None:
    hand = hold_of(queue)
    hand.owner.row.beat()
    hand.owner._reclaim_dead()
    works = {queue._consumer.plans.plan(None).has_work}
    sleeper = hand.owner.sleeper

    with hand._connector.idle() as (connection, wait):
        listen = hand._backend.dialect.sessions.listen(hand.owner.id)
        if listen is not None:
            connection.execute(listen)
        sleeper._beat_asleep(connection)
        for careful in (False, True):
            sleeper._check(connection, works, careful=careful)
        wait(0.01)
    queue.enqueue([{"d": "d", "e": "e"}] * 2)


def _reclaim(queue: Queue, backend: Backend) -> None:
    """From an owner that is found dead, and from one whose process is known to have ended."""
    dead_one, ended = (still(Queue(queue.engine, article_table())) for _ in range(2))
    dead_one.claim(2)
    declare_dead(backend, dead_one.owner_id)
    queue.reclaim()
    queue.reclaim_owner(ended.owner_id)
    for each in (dead_one, ended):
        each.close()
    backend.run("UPDATE jobs SET suspect = 0 WHERE suspect > 0")  # so that the next batch is one of fresh jobs


def _bury(queue: Queue) -> None:
    [dead] = queue.jobs.list(state="dead")
    queue.jobs.retry([dead.key])
    queue.jobs.drop([dead.key])


def _cancel(queue: Queue) -> None:
    batch = queue.claim(2)
    for held in hold_of(queue).held.of_owner(queue.owner_id):
        held.since = 0.0
    hold_of(queue).read_pause()  # as a heartbeat does, after claims
    queue.cancel([batch[0].key])
    batch.settle()


FEW: Final = {"retry": 1, "dead": 1, "suspects": 2}
"""Jobs of a batch that fails: their statement has a line for each."""


def _work(queue: Queue, outcome: str, backend: Backend) -> None:
    with queue.claim(FEW.get(outcome, SIZE)) as batch:
        if outcome == "suspects":
            batch.blame(ValueError("..."))
        elif outcome in ("retry", "dead"):
            batch.fail(batch[0], ValueError("..."), retry=outcome == "retry")
        elif outcome == "lost":
            backend.run("UPDATE jobs SET status = 'unclaimed', owner_id = NULL WHERE id = :id", id=batch[0].key)
            batch.done()
        elif outcome == "done":
            batch.done()
