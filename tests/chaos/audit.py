"""Audit: what really happened, as handlers and the database's own triggers wrote it down, and what is wrong with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.options import Kind
from tests.chaos.claim_rows import Move
from tests.chaos.kinds import KINDS, VIEW
from tests.chaos.triggers import MYSQL_NOW, POSTGRES_NOW, on_owners

METADATA: Final = sa.MetaData()

_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")

RUNS: Final = sa.Table(
    "chaos_runs",
    METADATA,
    sa.Column("id", _KEY, primary_key=True),
    sa.Column("call", sa.String(32), nullable=False, comment="one call of a handler"),
    sa.Column("job", sa.Integer, nullable=False),
    sa.Column("owner", sa.Integer, comment="as the job in hand had it"),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("at", sa.Double, nullable=False, comment="seconds since 1970, by the database's clock"),
    sa.Column("session", sa.Integer, comment="of the open transaction that held the job"),
    sa.UniqueConstraint("call", "job"),
)
"""Executions, written by handlers through a connection of their own."""

MOVES: Final = sa.Table(
    "chaos_moves",
    METADATA,
    sa.Column("id", _KEY, primary_key=True),
    sa.Column("job", sa.Integer, nullable=False),
    sa.Column("old_owner", sa.Integer),
    sa.Column("new_owner", sa.Integer),
    sa.Column("old_status", sa.String(10), comment="NULL: the job was enqueued"),
    sa.Column("new_status", sa.String(10), comment="NULL: the job is done and gone"),
    sa.Column("session", sa.Integer, nullable=False, comment="of the database, or number of the client"),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("undoable", sa.BigInteger, comment="see claim_rows.Move"),
    sa.Column("e", sa.String(64), comment="the key of an enqueued job, for limits per key"),
)
"""Every change of a job's status or owner, written by a trigger in the transaction that made it."""

SESSIONS: Final = sa.Table(
    "chaos_sessions",
    METADATA,
    sa.Column("owner", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("session", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("pid", sa.Integer, nullable=False),
)
"""The sessions in which an owner gave a sign of life: whatever else happens in them, that owner does."""

DEATHS: Final = sa.Table(
    "chaos_deaths",
    METADATA,
    sa.Column("id", _KEY, primary_key=True),
    sa.Column("owner", sa.Integer, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)
"""Owners that were declared dead, or left."""

EFFECTS: Final = sa.Table(
    "chaos_effects",
    METADATA,
    sa.Column("id", _KEY, primary_key=True),
    sa.Column("job", sa.Integer, nullable=False),
    sa.Column("session", sa.Integer, nullable=False, comment="of the open transaction that held the job"),
)
"""What handlers wrote in the transactions that held their jobs."""

WRITES: Final = sa.Table(
    "chaos_writes",
    METADATA,
    sa.Column("id", _KEY, primary_key=True),
    sa.Column("job", sa.Integer, nullable=False),
    sa.Column("session", sa.Integer, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)
"""Every UPDATE and DELETE of a job's row in a table that must not be altered."""

NOW: Final = {"postgresql": POSTGRES_NOW, "mysql": MYSQL_NOW, "mariadb": MYSQL_NOW}
"""The database's clock, in seconds since 1970, for each dialect of SQLAlchemy."""


def install(engine: sa.Engine, kind: Kind = "rows") -> None:
    """Make the tables, the view and the triggers, on tables of claimjobs that are there already."""
    METADATA.create_all(engine)
    chosen, postgres = KINDS[kind], engine.dialect.name == "postgresql"
    made = (chosen.view(postgres=postgres), *on_owners(postgres=postgres))
    with engine.begin() as connection:
        for statement in (*made, *(each for make in chosen.triggers for each in make(postgres=postgres))):
            connection.exec_driver_sql(statement).close()


def forget(engine: sa.Engine, kind: Kind) -> None:
    """Begin a new page: no job is left, and nothing that was written."""
    with engine.begin() as connection:
        for name in KINDS[kind].filled:
            connection.exec_driver_sql(f"DELETE FROM {name}").close()
        for table in METADATA.sorted_tables:
            connection.execute(sa.delete(table))


@dataclass(frozen=True)
class Story:
    """What was written since the last page began."""

    runs: list[Any]
    moves: list[Move]
    sessions: set[tuple[int, int]]
    pids: dict[int, int]
    """The process of each owner."""
    deaths: dict[int, float]
    left: dict[int, tuple[str, str]]
    """Jobs that are in the table still: status and kind."""
    keys: dict[int, str] = field(default_factory=dict)
    """The key of each job, for limits per key."""
    effects: list[tuple[int, int]] = field(default_factory=list)
    """Jobs whose effects were committed, with the sessions of the transactions."""
    writes: list[Any] = field(default_factory=list)
    """Of rows in a table that must not be altered."""

    # --- promises --------------------------------------------------------------------------------------

    @cached_property
    def enqueued(self) -> set[int]:
        """All jobs that there ever were."""
        return {move.job for move in self.moves if move.old_status is None}

    @cached_property
    def done(self) -> Counter[int]:
        """How often each job was settled as done."""
        return Counter(move.job for move in self.moves if move.new_status is None)

    @property
    def dead(self) -> list[int]:
        """Jobs that are out of attempts."""
        return [job for job, (status, _) in self.left.items() if status == "dead"]

    def lost(self, poison: Set[str]) -> list[int]:
        """Jobs that are neither done, nor dead as poison ought to be."""
        dead = {job for job in self.dead if self.left[job][1] in poison}
        return sorted(self.enqueued - self.done.keys() - dead)

    @property
    def settled_twice(self) -> list[str]:
        """Settles that were not the owner's to make, each described."""
        twice = [f"job {job} was done {times} times" for job, times in self.done.items() if times > 1]
        wrong = [*self._out_of_turn(), *filter(self._is_wrong, self.moves)]
        return twice + list(map(self._describe, wrong))

    def _out_of_turn(self) -> Iterator[Move]:
        """Moves that do not begin where the one before them ended, such as a claim of a job that is claimed."""
        status: dict[int, str | None] = {}
        for move in self.moves:
            if status.get(move.job) != move.old_status:
                yield move
            status[move.job] = move.new_status

    @cached_property
    def _hands(self) -> set[tuple[int | None, int]]:
        """Each process with the sessions that are its own.

        One that was declared dead may settle under its old id, in the session of its new one, for as long as
        nobody could take its jobs away: they never left its hand.
        """
        return {(self.pids[owner], session) for owner, session in self.sessions}

    def _is_wrong(self, move: Move) -> bool:
        if move.old_status is None:
            return False
        if move.old_status == "unclaimed":
            return bool(move.new_status != "claimed")
        by_owner = move.old_status == "claimed" and (self.pids.get(move.old_owner or 0), move.session) in self._hands
        handed_back = move.old_status == "claimed" and move.new_status in ("unclaimed", "dead")
        return not by_owner and not (handed_back and self.deaths.get(move.old_owner or 0, move.at + 1) <= move.at)

    def _describe(self, move: Move) -> str:
        return (
            f"job {move.job} went from {move.old_status} ({move.old_owner}) to {move.new_status or 'done'} "
            f"in session {move.session}, at {move.at:.3f}, owner dead since {self.deaths.get(move.old_owner or 0)}"
        )

    @property
    def not_exactly_once(self) -> list[str]:
        """Jobs without one effect in the session of each settle as done, or with one and no such settle."""
        settled = [(move.job, move.session) for move in self.moves if move.new_status is None]
        wrong = (Counter(settled) - Counter(self.effects)) + (Counter(self.effects) - Counter(settled))
        return [
            f"job {job} was done in sessions {[by for each, by in settled if each == job]} "
            f"and has effects of {[by for each, by in self.effects if each == job]}"
            for job in sorted({job for job, _ in wrong})
        ]

    @property
    def executed_twice(self) -> int:
        """Executions beyond the first of each job."""
        return sum(times - 1 for times in self.executions.values())

    @cached_property
    def executions(self) -> Counter[int]:
        """How often each job was executed."""
        return Counter(run.job for run in self.runs)

    def dump(self, file: Path, strikes: Iterable[object]) -> None:
        """Everything that happened to jobs that were executed more than once, for whoever wants to know why."""
        lines = [f"strike {strike}" for strike in strikes]
        lines += [f"owner {owner} pid {pid} dead at {self.deaths.get(owner)}" for owner, pid in self.pids.items()]
        for job in sorted(job for job, times in self.executions.items() if times > 1):
            events = [(run.at, f"run by {run.pid} in {run.call}") for run in self._runs_of[job]]
            events += [
                (move.at, f"{move.old_status} {move.old_owner} -> {move.new_status} {move.new_owner} by {move.session}")
                for move in self._moves_of[job]
            ]
            lines += [f"job {job} {at:.3f} {what}" for at, what in sorted(events)]
        file.write_text("\n".join(lines) + "\n")

    @cached_property
    def most_in_hand(self) -> int:
        """The most jobs of one key that were claimed at one moment. A claim counts from the trigger of its write on."""
        now, most = Counter[str](), 0
        for move in self.moves:
            key = self.keys.get(move.job, "")
            now[key] += (move.new_status == "claimed") - (move.old_status == "claimed")
            most = max(most, now[key])
        return most

    @cached_property
    def out_of_order(self) -> list[str]:
        """Claims of jobs before which others of their key were to be done, each described."""
        left, wrong = defaultdict[str, dict[int, Move]](dict), []
        for move in self.moves:
            mine = left[self.keys.get(move.job, "")]
            if move.old_status is None:
                mine[move.job] = move
            elif move.new_status in (None, "dead"):
                mine.pop(move.job, None)
            elif move.new_status == "claimed" and (first := next(iter(mine), move.job)) != move.job:
                wrong.append(f"job {move.job} was claimed at {move.at:.3f} before job {first}")
        return wrong

    # --- how long it took ------------------------------------------------------------------------------

    @cached_property
    def _moves_of(self) -> dict[int, list[Move]]:
        moves: dict[int, list[Move]] = defaultdict(list)
        for move in self.moves:
            moves[move.job].append(move)
        return moves

    @cached_property
    def _runs_of(self) -> dict[int, list[Any]]:
        runs: dict[int, list[Any]] = defaultdict(list)
        for run in self.runs:
            runs[run.job].append(run)
        return runs

    def in_hand(self, pids: Set[int], at: float) -> list[int]:
        """The jobs that these processes had claimed and not settled at a moment."""
        owners = {owner for owner, pid in self.pids.items() if pid in pids}
        return [job for job in self._moves_of if self._holder(job, at) in owners]

    def _holder(self, job: int, at: float) -> int | None:
        before = [move for move in self._moves_of[job] if move.at <= at]
        return before[-1].new_owner if before else None

    def went_on(self, job: int, pids: Set[int], at: float) -> float | None:
        """Seconds from a moment until a job was settled as done, or executed by another process than these."""
        ran = [run.at for run in self._runs_of[job] if run.at > at and run.pid not in pids]
        done = [move.at for move in self._moves_of[job] if move.at > at and move.new_status is None]
        return min([*ran, *done]) - at if ran or done else None

    def detour(self, job: int) -> float:
        """Seconds from a job's first execution until it was done."""
        done = [move.at for move in self._moves_of[job] if move.new_status is None]
        return max(done, default=0.0) - self._runs_of[job][0].at if done else 0.0

    @property
    def innocent(self) -> dict[int, int]:
        """The jobs that did not die and were executed more than once: how often."""
        dead = set(self.dead)
        return {job: times for job, times in self.executions.items() if times > 1 and job not in dead}

    @cached_property
    def settled_at(self) -> list[float]:
        """When each job was settled as done, in order."""
        return sorted(move.at for move in self.moves if move.new_status is None)

    @property
    def longest_gap(self) -> float:
        """The most seconds in which no job was done, from the first one to the last one."""
        return max((later - at for at, later in pairwise(self.settled_at)), default=0.0)

    @property
    def per_second(self) -> float:
        """Jobs that were done in a second, from the first one to the last one."""
        if len(self.done) < 2:
            return 0.0
        return len(self.done) / (self.settled_at[-1] - self.settled_at[0])

    def next_run(self, at: float) -> float | None:
        """Seconds from a moment until any job was executed."""
        later = [run.at for run in self.runs if run.at > at]
        return min(later) - at if later else None


def read(engine: sa.Engine, kind: Kind = "rows") -> Story:
    """All that was written since the last `forget`."""
    columns = [MOVES.c[name] for name in Move._fields]
    with engine.connect() as connection:
        sessions = connection.execute(sa.select(SESSIONS)).all()
        deaths: dict[int, float] = {}
        for death in connection.execute(sa.select(DEATHS).order_by(DEATHS.c.id)):
            deaths.setdefault(death.owner, death.at)
        left = connection.execute(sa.text(f"SELECT id, status, d FROM {VIEW}")).all()
        named = connection.execute(sa.select(MOVES.c.job, MOVES.c.e).where(MOVES.c.old_status.is_(None))).all()
        moves = [Move(*row) for row in connection.execute(sa.select(*columns).order_by(MOVES.c.id))]
        runs = list(connection.execute(sa.select(RUNS).order_by(RUNS.c.id)))
        # A process by transaction is its own owner.
        by_transaction = {(run.pid, run.session) for run in runs if run.session is not None}
        return Story(
            runs=runs,
            moves=KINDS[kind].in_rows(moves, runs),
            sessions={(row.owner, row.session) for row in sessions} | by_transaction,
            pids={row.owner: row.pid for row in sessions} | {pid: pid for pid, _ in by_transaction},
            deaths=deaths,
            left={row.id: (row.status, row.d) for row in left},
            keys={row.job: row.e for row in named},
            effects=[(row.job, row.session) for row in connection.execute(sa.select(EFFECTS))],
            writes=list(connection.execute(sa.select(WRITES))),
        )
