"""The honest opponent: what a good programmer writes by hand in a plain driver, on the table of `setup-tables`.

PyMySQL for MySQL and MariaDB, psycopg for Postgres. It does the durable work of claimjobs with the same checks and
nothing beside: a job is claimed in index order, under a row lock, where it is unclaimed and due; status, owner_id and
owner_date say who has it; the settle deletes what is claimed by this owner, and counts that it reached all it meant.

- Postgres: the settle of the last batch and the claim of the next are one statement, one round trip, one commit. The
  claim's candidates depend on the count of what was deleted: left to the planner the DELETE runs last, while the
  locks of the claim are held, and consumers deadlock.
- MySQL: both are one transaction of four round trips at READ COMMITTED. The indexes are forced: the optimizer takes a
  secondary index for the key now and then, and sorts, or locks, what it need not.
- `hold="transaction"`: lock, work, delete, commit. There is no state 'claimed', and a crash rolls back.

It registers nobody and gives no signs of life: a job of a killed consumer stays claimed for ever.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import psycopg
import pymysql

from benchmarks import article
from benchmarks.article import BATCH, Connection, Row, Tally, connected, is_postgres

Hold = Literal["lease", "transaction"]
Keys = list[Any]
Hear = Callable[[Keys], object]
"""Is told the keys of a batch, in the order of the claim."""
SettleAndClaim = Callable[[Connection, int, Keys, int], list[Row]]
"""Settles these keys of this owner, then claims up to so many jobs: both durable when it returns."""
Over = Callable[[], bool]

PAUSE = 0.005
"""Seconds to wait where nothing is there and more is to come."""


class Lost(Exception):
    """A settle reached fewer jobs than it was meant for."""


def nothing(_: Keys) -> None:
    """What a handler does that does nothing."""


@dataclass(frozen=True)
class Loop:
    """A consumer by lease, with its connection open."""

    db: Connection
    me: int
    size: int
    turn: SettleAndClaim

    def __call__(self, work: Hear = nothing, settled: Hear = nothing, over: Over | None = None) -> Tally:
        """Claim, work, settle, until nothing is left, or where `over` is given until that is true."""
        tally = Tally()
        done: Keys = []
        while True:
            size = 0 if over and over() else self.size
            jobs = article.again(self.db, partial(self.turn, self.db, self.me, done, size), tally)
            _count(tally, len(done))
            settled(done)
            done = _keys(jobs, tally)
            if jobs:
                work(done)
            elif _is_over(over):
                return tally


@dataclass(frozen=True)
class Held:
    """A consumer whose open transaction holds its batch."""

    db: Connection
    size: int
    hold: str
    delete: str

    def __call__(self, work: Hear = nothing, settled: Hear = nothing, over: Over | None = None) -> Tally:
        """As above."""
        tally = Tally()
        while not (over and over()):
            done = _keys(article.again(self.db, self._lock, tally), tally)
            if done:
                work(done)
                if self._settles(done, tally):
                    _count(tally, len(done))
                    settled(done)
            else:
                self.db.rollback()
                if _is_over(over):
                    break
        return tally

    def _lock(self) -> list[Row]:
        with self.db.cursor() as cursor:
            cursor.execute(self.hold, (self.size,))
            return list(cursor.fetchall())

    def _settles(self, done: Keys, tally: Tally) -> bool:
        """Delete and commit. After a deadlock nothing was done, and whoever comes first has the jobs."""
        try:
            with self.db.cursor() as cursor:
                cursor.execute(self.delete, (done,))
                _must_be_all(cursor.rowcount, done)
            self.db.commit()
        except (pymysql.Error, psycopg.Error) as error:
            if not article.is_deadlock(error):
                raise
            self.db.rollback()
            tally.again += 1
            return False
        return True


def _keys(jobs: list[Row], tally: Tally) -> Keys:
    tally.claims += 1
    tally.empty += not jobs
    return [job[0] for job in jobs]


def _count(tally: Tally, settled: int) -> None:
    if settled:
        tally.jobs += settled
        tally.last = time.monotonic()


def _is_over(over: Over | None) -> bool:
    """Nothing was found: whether that is the end. Waits a moment if it is not."""
    if over is None or over():
        return True
    time.sleep(PAUSE)
    return False


@contextmanager
def opened(
    url: str, number: int, *, size: int = BATCH, hold: Hold = "lease", any_order: bool = False, partitions: int = 0
) -> Iterator[Loop | Held]:
    """A consumer of this number, with its connection open. `partitions`: how many by a hash of the key there are."""
    postgres = is_postgres(url)
    with connected(url, read_committed=True) as db:
        turn: SettleAndClaim = _postgres_turn if postgres else _mysql_turn
        if hold == "transaction":
            yield Held(db, size, *(POSTGRES_HOLD if postgres else MYSQL_HOLD))
        else:
            if postgres:
                db.autocommit = True
            if any_order:
                turn = RandomPlace(db, turn).turn
            elif partitions:
                turn = PreferredPartition(number, partitions, turn).turn
            yield Loop(db, number, size, turn)


def _must_be_all(reached: int, done: Keys) -> None:
    if reached != len(done):
        raise Lost(f"{len(done)} jobs were to be settled, {reached} were still ours")


# --- by lease, on Postgres -----------------------------------------------------------------------------------

SETTLE_AND_CLAIM = """
with settled as (
    delete from jobs
    where id = any(%(done)s::int[]) and status = 'claimed' and owner_id = %(me)s
    returning id
), reached as materialized (
    select count(*) as n from settled
), candidate as materialized (
    select id from jobs
    where status = 'unclaimed' and run_at <= now() and (select n from reached) >= 0
    order by priority, id
    limit %(size)s
    for update skip locked
), claimed as (
    update jobs set status = 'claimed', owner_id = %(me)s, owner_date = now()
    where id = any(array(select id from candidate))
    returning id, d, e, priority
)
select reached.n, claimed.id, claimed.d, claimed.e
from reached left join claimed on true
order by claimed.priority, claimed.id
"""


def _postgres_turn(
    db: psycopg.Connection[Any],
    me: int,
    done: Keys,
    size: int,
    *,
    place: int | None = None,
    partition: int | None = None,
) -> list[Row]:
    statement = SETTLE_AND_CLAIM if place is None else SETTLE_AND_CLAIM.replace(ORDER, AFTER.replace("%s", "%(place)s"))
    if partition is not None:
        statement = statement.replace("jobs", f"jobs_{partition}")
    rows = db.execute(statement, {"done": done, "me": me, "size": size, "place": place}).fetchall()
    _must_be_all(rows[0][0], done)
    return [row[1:] for row in rows if row[1] is not None]


# --- by lease, on MySQL --------------------------------------------------------------------------------------

SETTLE = """
delete jobs from jobs force index (primary) where id in %s and status = 'claimed' and owner_id = %s
"""
LOCK = """
select id, d, e from jobs force index (jobs_claim)
where status = 'unclaimed' and run_at <= utc_timestamp(6)
order by priority, id
limit %s
for update skip locked
"""
MARK = """
update jobs force index (primary) set status = 'claimed', owner_id = %s, owner_date = utc_timestamp()
where id in %s
"""


def _mysql_turn(
    db: Connection, me: int, done: Keys, size: int, *, place: int | None = None, partition: int | None = None
) -> list[Row]:
    lock, values = (LOCK, (size,)) if place is None else (LOCK.replace(ORDER, AFTER), (place, size))
    if partition is not None:
        lock = lock.replace("from jobs", f"from jobs partition (p{partition})")
    jobs: list[Row] = []
    with db.cursor() as cursor:
        if done:
            _must_be_all(cursor.execute(SETTLE, (done, me)), done)
        if size and cursor.execute(lock, values):
            jobs = list(cursor.fetchall())
            cursor.execute(MARK, (me, [job[0] for job in jobs]))
    db.commit()
    return jobs


# --- in any order --------------------------------------------------------------------------------------------

ORDER = "order by priority, id"
AFTER = f"and priority = 0 and id > %s {ORDER}"


class RandomPlace:
    """A loop that begins at a random place, goes on after the last job of each claim, and wraps around."""

    def __init__(self, db: Connection, turn: Callable[..., list[Row]]) -> None:
        self._db, self._turn = db, turn
        self._place: int | None = None

    def turn(self, db: Connection, me: int, done: Keys, size: int) -> list[Row]:
        place = self._random() if self._place is None else self._place
        jobs = self._turn(db, me, done, size, place=place)
        if not jobs and size and place:
            place, jobs = 0, self._turn(db, me, [], size, place=0)
        self._place = jobs[-1][0] if len(jobs) == size else 0
        return jobs

    def _random(self) -> int:
        with self._db.cursor() as cursor:
            cursor.execute("select min(id), max(id) from jobs")
            [ends] = cursor.fetchall()
        return random.randint(*ends)


# --- in partitions by a hash of the key ----------------------------------------------------------------------


class PreferredPartition:
    """A loop that empties a partition of its own, and goes on to the next one where it finds fewer than it wanted."""

    def __init__(self, number: int, partitions: int, turn: Callable[..., list[Row]]) -> None:
        self._turn, self._partitions = turn, partitions
        self._partition = number % partitions

    def turn(self, db: Connection, me: int, done: Keys, size: int) -> list[Row]:
        jobs = self._turn(db, me, done, size, partition=self._partition)
        others = self._partitions if size else 0
        while not jobs and others:
            self._partition = (self._partition + 1) % self._partitions
            others -= 1
            jobs = self._turn(db, me, [], size, partition=self._partition)
        return jobs


# --- by an open transaction: how jobs are locked, how they are deleted ---------------------------------------

POSTGRES_HOLD = (
    """
select id, d, e from jobs
where status = 'unclaimed' and run_at <= now()
order by priority, id
limit %s
for update skip locked
""",
    "delete from jobs where id = any(%s::int[])",
)
MYSQL_HOLD = (LOCK, "delete jobs from jobs force index (primary) where id in %s")
