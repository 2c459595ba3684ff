"""Arena: a server, a load, consumers that are hit, and what became of it all."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

import servers
from claimjobs import ClaimjobsError, Queue, key_tables, make, tables_for
from claimjobs.options import Kind
from servers import containers, programs
from servers.pgbouncer import PgBouncer
from tests.chaos import audit, work
from tests.chaos.engines import engine_to
from tests.chaos.fleet import Formation, Group, Overdue, Road, Settings, all_ended, bare, supervised, until
from tests.chaos.kinds import KINDS, QueueKind
from tests.chaos.namespace import Namespace
from tests.chaos.proxy import Proxy

BACKLOG: Final = 150
"""Everyone is busy."""
CHUNK: Final = 50
KEYS: Final = 40
"""Values of column `e`, for limits per key."""
WORK_SECONDS: Final = 0.05
"""What a handler spends on a batch."""
DRAIN_SECONDS: Final = 60.0
ADVISORY_LOCKS: Final = "SELECT pid, objid FROM pg_locks WHERE locktype = 'advisory'"


@dataclass(frozen=True)
class Strike:
    """One fault: when, and whom it hit."""

    at: float
    """Seconds since 1970: when it struck or, where everyone was hit, when it was over."""
    pids: frozenset[int]
    """Processes whose jobs were in danger."""
    in_danger: int
    """Jobs that may be executed once more because of it: consumers hit times what each holds."""
    everyone: bool = False


@dataclass
class Arena:
    """A place for one phase after the other."""

    server: servers.Server
    random: random.Random
    folder: Path
    kind: Kind = "rows"
    """The kind of queue that all consumers have."""
    candidates: str | None = None
    """The URL of a replica where their claims find candidates."""
    per_key: int = 0
    """How many jobs of each value of column `e` may be claimed at once; 0: any number."""
    in_order: bool = False
    """Whether the jobs of each value of column `e` are done one after the other, in their order."""
    roads: dict[Road, str] = field(default_factory=dict)
    """URLs by which consumers may go, other than the server's own."""
    prefix: list[str] = field(default_factory=list)
    """What a command of road `namespace` begins with."""
    hang_seconds: float = 5.0
    backlog: int = BACKLOG
    """Jobs that wait at any time while a phase lasts."""
    chunk: int = CHUNK
    """Jobs that are enqueued at once."""
    pooler: PgBouncer | None = None
    """That of road `pooler`, which the load takes, too."""

    def __post_init__(self) -> None:
        self.engine = engine_to(self.server.url, poolclass=sa.NullPool)
        self.queue.make(self.engine)
        if self.per_key or self.in_order:
            jobs = tables_for("jobs")[0]
            columns = ("status", "e", "priority", "id", "run_at", "suspect")
            sa.Index("jobs_by_key", *(jobs.c[name] for name in columns)).create(self.engine)
            make(self.engine, key_tables(self.engine, "jobs", ["e"]))
        audit.install(self.engine, self.kind)
        self._shape = self._shape_now
        self.groups: list[Group] = []
        self.supervisors: list[Group] = []
        self.bares: list[Group] = []
        self.witnesses: list[Group] = []
        self.strikes: list[Strike] = []
        self.injected = 0
        self.formation = Formation()
        self.proxy: Proxy | None = None
        self.cage: Namespace | None = None
        self.disk: Path | None = None
        self._logs = 0

    @property
    def the_proxy(self) -> Proxy:
        """That of road `proxy`."""
        assert self.proxy is not None
        return self.proxy

    @property
    def the_cage(self) -> Namespace:
        """That of road `namespace`."""
        assert self.cage is not None
        return self.cage

    @property
    def postgres(self) -> bool:
        """For what only a family can do to itself."""
        return self.server.backend == "postgres"

    @property
    def the_disk(self) -> Path:
        """That of the server, where it has one of its own."""
        assert self.disk is not None
        return self.disk

    def url(self, road: Road) -> str:
        """How consumers reach the server by this road."""
        if road == "pooler":
            return str(self.the_pooler.url)
        return self.server.url if road == "direct" else self.roads[road]

    @property
    def the_pooler(self) -> PgBouncer:
        """That of road `pooler`."""
        assert self.pooler is not None
        return self.pooler

    @property
    def queue(self) -> QueueKind:
        """What is known of the kind of queue."""
        return KINDS[self.kind]

    @property
    def claimed(self) -> str:
        """The predicate of a job that is claimed, in SQL."""
        return self.queue.claimed(postgres=self.postgres)

    @property
    def _shape_now(self) -> str:
        inspector = sa.inspect(self.engine)
        return repr((inspector.get_columns("jobs"), inspector.get_indexes("jobs")))

    # --- groups ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def fleet(self, formation: Formation) -> Iterator[None]:
        """The groups of a formation at work, under load. Afterwards none of their processes is left."""
        limits = {"per_key": self.per_key, "in_order": self.in_order}
        self.formation = formation.but(kind=self.kind, candidates=self.candidates, **limits)
        self.groups, self.supervisors, self.bares, self.witnesses = [], [], [], []
        self.strikes = []
        audit.forget(self.engine, self.kind)
        with all_ended(self.groups), Load(self) as self.load:
            self.restore()
            until(lambda: self._registered(all), "every consumer is registered")
            yield

    def restore(self) -> None:
        """Start groups that are missing of the formation; return when there is a consumer in every group."""
        formation = self.formation
        healthy = replace(formation.settings, road="direct", clock=0.0)
        alive = [group for group in self.supervisors if group.alive]
        if formation.supervised and not alive:
            self.supervisors.append(self.supervisor(formation.settings, formation.supervised))
        while sum(group.alive for group in self.bares) < formation.bare:
            hours = formation.settings.clock * (-1) ** len(self.bares)
            self.bares.append(self.bare(replace(formation.settings, clock=hours)))
        while sum(group.alive for group in self.witnesses) < formation.witnesses:
            self.witnesses.append(self.bare(healthy))
        until(lambda: self._registered(any), "a consumer of every group is registered")

    def supervisor(self, settings: Settings, consumers: int) -> Group:
        """Another supervisor with so many consumers."""
        return self._start(supervised(self.url(settings.road), settings, consumers), settings, consumers)

    def bare(self, settings: Settings) -> Group:
        """Another consumer without a supervisor."""
        url = sa.make_url(self.url(settings.road))
        if settings.road == "pooler":  # by its name the audit knows it in each session
            url = url.update_query_dict({"application_name": f"client {self._logs + 1}"})
        return self._start(bare(url.render_as_string(hide_password=False), settings), settings, None)

    def _start(self, command: list[str], settings: Settings, consumers: int | None) -> Group:
        self._logs += 1
        inside = settings.road == "namespace"
        group = Group(
            [*self.prefix, *command] if inside else command,
            {**self._environment(inside), **clock(settings.clock)},
            self.folder / f"{self.server.backend}-{sa.make_url(self.server.url).port}-{self._logs}.log",
            consumers,
        )
        self.groups.append(group)
        return group

    def _environment(self, inside: bool) -> dict[str, str]:
        return {
            work.AUDIT_URL: self.roads["namespace"] if inside else self.server.url,
            work.SECONDS: str(WORK_SECONDS),
            work.HANG_SECONDS: str(self.hang_seconds),
        }

    def _registered(self, enough: Callable[[Iterable[bool]], bool]) -> bool:
        """Whether all, or any, of the consumers of each living group are."""
        owners = self.owners()
        return all(enough(group.seats(owners)) for group in self.groups if group.alive)

    def consumers(self) -> list[int]:
        """All that are alive."""
        return [pid for group in self.groups for pid in group.consumers()]

    # --- looking ---------------------------------------------------------------------------------------

    def ask(self, statement: str, **values: Any) -> list[Any]:
        """The rows of a question to the server; none where it does not answer."""
        try:
            with self.engine.connect() as connection:
                return list(connection.execute(sa.text(statement), values))
        except sa.exc.DBAPIError:
            return []

    def do(self, statement: str) -> bool:
        """Whether this could be done, and committed."""
        try:
            with self.engine.begin() as connection:
                connection.exec_driver_sql(statement).close()
        except sa.exc.DBAPIError:
            return False
        return True

    def plant(self, kind: str) -> int:
        """Enqueue a job of this kind, in company; its key."""
        company = [work.PLAIN] * (self.formation.settings.size // 2)
        self.load.enqueue([*company, kind, *company])
        return int(self.ask("SELECT max(id) FROM jobs WHERE d = :kind", kind=kind)[0][0])

    def owners(self) -> dict[int, int]:
        """The processes that are registered, and how many jobs each holds."""
        return {row[0]: int(row[1]) for row in self.ask(self.queue.owners)}

    def ran_since(self, at: float) -> set[int]:
        """The processes that have executed a job since then."""
        return {row[0] for row in self.ask("SELECT DISTINCT pid FROM chaos_runs WHERE at > :since", since=at)}

    def busy(self, pids: list[int]) -> int:
        """One of these processes that has jobs in hand, as soon as there is one."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [pid for pid, jobs in self.owners().items() if jobs and pid in pids]
            return bool(found)

        until(look, f"one of {pids} has jobs in hand")
        return self.random.choice(sorted(found))

    def pause(self, shortest: float, longest: float) -> None:
        """Wait for a random time."""
        time.sleep(self.random.uniform(shortest, longest))

    # --- striking --------------------------------------------------------------------------------------

    def hit(self, pids: list[int], consumers: int | None = None, at: float | None = None) -> None:
        """A fault struck these processes, just now; `consumers` of them may have their jobs executed once more."""
        danger = len(pids) if consumers is None else consumers
        held = self.formation.settings.most_held
        self.strikes.append(Strike(at or time.time(), frozenset(pids), danger * held))

    def endanger(self, jobs: int) -> None:
        """So many executions may be made more than once because of what is done now; nobody is hit."""
        self.strikes.append(Strike(time.time(), frozenset(), jobs))

    def hit_everyone(self, at: float | None = None) -> None:
        """A fault that struck the server is over, since `at` or just now."""
        pids = self.consumers()
        danger = len(pids) * self.formation.settings.most_held
        self.strikes.append(Strike(at or time.time(), frozenset(pids), danger, True))

    # --- the end of a phase ----------------------------------------------------------------------------

    def drain(self) -> None:
        """Enqueue no more, and let healthy consumers finish all there is. Raises Overdue."""
        self.load.stop()
        if not any(group.alive for group in self.groups):
            self.witnesses.append(self.bare(replace(self.formation.settings, road="direct", clock=0.0)))
        left = "SELECT count(*) FROM chaos_jobs WHERE status NOT IN ('done', 'dead')"
        until(lambda: self.ask(left) == [(0,)], "every job is done or dead", DRAIN_SECONDS)

    def stop(self) -> list[str]:
        """End every group in order; what they leave behind."""
        late = [f"{group.log} ended by itself" for group in self.groups if not group.alive and not group.doomed]
        late += [str(error) for group in self.groups if (error := _stopped(group))]
        with contextlib.suppress(sa.exc.DBAPIError):  # that the server does not answer is told by others
            late += [] if self._shape_now == self._shape else ["the table of the jobs was altered"]
        left: list[str] = []

        def look() -> bool:
            # The last look counts. Another one at once might meet the session that this one has just closed.
            left[:] = self._left_behind()
            return not left

        with contextlib.suppress(Overdue):
            until(look, "nothing is left behind", 15)
        return late + left

    def _left_behind(self) -> list[str]:
        found = [f"process {pid}" for group in self.groups for pid in group.processes()]
        found += [f"owner {tuple(row)}" for row in self.ask("SELECT id, pid, died FROM claimjobs_owners")]
        found += [f"claimed {tuple(row)}" for row in self.ask("SELECT id FROM chaos_jobs WHERE status = 'claimed'")]
        found += [f"batch {tuple(row)}" for row in self.ask("SELECT owner_id, number, jobs FROM claimjobs_batches")]
        if self.pooler is not None:
            return found + [f"lock {tuple(row)}" for row in self.ask(ADVISORY_LOCKS)]
        return found + [f"session {tuple(row)}" for row in self.sessions()]

    def sessions(self) -> list[Any]:
        """The sessions of the database but the one that asks."""
        if self.postgres:
            return self.ask(
                "SELECT pid, state, left(query, 60) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        return self.ask(
            "SELECT id, command, left(info, 60) FROM information_schema.processlist "
            "WHERE db = database() AND id <> connection_id()"
        )

    def end_session(self, session: int) -> None:
        """As an administrator would."""
        statement = f"SELECT pg_terminate_backend({session})" if self.postgres else f"KILL {session}"
        self.do(statement)


def own_server(backend: servers.Backend) -> servers.Server:
    """A server that may be killed, whatever CLAIMJOBS_TEST_*_URL names. Raises servers.Unavailable."""
    return (containers.find(backend) or programs.find(backend)).start()


def clock(hours: float) -> dict[str, str]:
    """The environment of a process whose clock is off by so many hours."""
    if not hours:
        return {}
    skewed = Path(__file__).with_name("skewed")
    return {"PYTHONPATH": str(skewed), "CHAOS_CLOCK_OFF": str(hours * 3600)}


def _stopped(group: Group) -> Overdue | None:
    try:
        group.stop()
    except Overdue as error:
        return error
    return None


class Load(threading.Thread):
    """Enqueues all the time, as much as keeps everyone busy. Leave the block, or `stop`, and it ends."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(name="load", daemon=True)
        self._arena = arena
        url = arena.server.url if arena.pooler is None else arena.pooler.url
        self._queue = Queue(engine_to(url, poolclass=sa.NullPool), **arena.queue.options)
        self._ended = threading.Event()
        self._counting = threading.Lock()
        self.acknowledged = 0

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Enqueue no more."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            with contextlib.suppress(ClaimjobsError, sa.exc.SQLAlchemyError):
                self._top_up()

    def _top_up(self) -> None:
        waiting = self._arena.ask("SELECT count(*) FROM chaos_jobs WHERE status = 'unclaimed'")
        if waiting and waiting[0][0] < self._arena.backlog:
            self.enqueue([work.PLAIN] * self._arena.chunk)

    def enqueue(self, kinds: Sequence[str]) -> None:
        """Enqueue jobs of these kinds now. Raises what the queue raises."""
        count = self._queue.enqueue([{"d": kind, "e": str(self._arena.random.randrange(KEYS))} for kind in kinds])
        with self._counting:
            self.acknowledged += count
