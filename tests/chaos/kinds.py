"""The four kinds of queue, as the arena and the audit know them: a description each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import sqlalchemy as sa

from claimjobs import make, side_car_tables, tables_for
from claimjobs.options import Kind
from tests.chaos import claim_rows, open_transactions, triggers
from tests.chaos.claim_rows import Move

VIEW: Final = "chaos_jobs"
"""The jobs of any kind of queue: id, d, status, attempts, suspect."""

_OWNERS: Final = (
    "SELECT o.pid, count(jobs.id) FROM claimjobs_owners o "
    "LEFT JOIN jobs ON jobs.owner_id = o.id AND jobs.status = 'claimed' WHERE o.died IS NULL GROUP BY o.pid"
)

Need = Literal["deaths", "hangs", "many at once", "restarts", "silence"]
"""What a fault needs of a kind of queue."""

PLAIN_JOBS: Final = sa.Table(
    "jobs",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("d", sa.String(64), nullable=False),
    sa.Column("e", sa.String(64), nullable=False),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
"""A table of a user's, which must not be altered."""


@dataclass(frozen=True)
class QueueKind:
    """What the arena and the audit know of a kind of queue."""

    options: Mapping[str, Any]
    """Of its Queues."""
    claimed: Callable[..., str]
    """The predicate of a job that is claimed, in the SQL of Postgres, or of MySQL (`postgres=False`)."""
    owners: str
    """SQL: the processes that are registered, and how many jobs each holds."""
    triggers: Sequence[Callable[..., Sequence[str]]] = (triggers.on_jobs,)
    """The statements that make those which write what becomes of jobs."""
    in_rows: Callable[[list[Move], Iterable[Any]], list[Move]] = lambda moves, _: moves
    """Moves and executions as the moves of claims that are recorded in the rows of their jobs."""
    handler: str = "handle"
    """A function of `work`."""
    exactly_once: bool = False
    """Whether it writes effects in the transaction that holds the jobs."""
    columns: str = "jobs.id, jobs.d, jobs.attempts, jobs.suspect"
    status: str = "jobs.status"
    """What the table of outcomes says of the job."""
    tables: str = "jobs"
    """Which have the columns and the status."""
    unclaimed: str = "jobs.status = 'unclaimed'"
    """The predicate of a job that is neither done nor dead, and not claimed in its row."""
    filled: Sequence[str] = ("jobs",)
    """The tables that have rows of jobs."""
    make: Callable[[sa.Engine], object] = lambda engine: make(engine, tables_for("jobs"))
    lacks: Mapping[Need | None, str] = field(default_factory=dict)
    """Why faults are left out."""

    @property
    def words(self) -> list[str]:
        """The options, for a command."""
        named = {f"--{name.replace('_', '-')}": value for name, value in self.options.items()}
        return [word for name, value in named.items() for word in ([name] if value is True else [name, value])]

    def view(self, *, postgres: bool) -> str:
        """The statement that makes it."""
        status = f"CASE WHEN {self.claimed(postgres=postgres)} THEN 'claimed' ELSE {self.status} END"
        return f"CREATE VIEW {VIEW} AS SELECT {self.columns}, {status} AS status FROM {self.tables}"


def _make_beside(engine: sa.Engine) -> None:
    PLAIN_JOBS.create(engine)
    make(engine, side_car_tables(engine, "jobs"))


KINDS: Final[Mapping[Kind, QueueKind]] = {
    "rows": QueueKind({"claims": "rows"}, lambda **_: "jobs.status = 'claimed'", _OWNERS),
    "batches": QueueKind(
        {"claims": "batches"},
        claim_rows.claimed,
        claim_rows.OWNERS,
        triggers=(triggers.on_jobs, claim_rows.triggers),
        in_rows=lambda moves, _: claim_rows.as_in_rows(moves),
    ),
    "transaction": QueueKind(
        {"hold": "transaction"},
        lambda **_: "1 = 0",
        open_transactions.OWNERS,
        in_rows=open_transactions.as_in_rows,
        handler="handle_in_transaction",
        exactly_once=True,
        lacks={
            "deaths": "where a transaction holds the jobs, a death costs no job an attempt",
            "hangs": "a transaction holds its jobs for as long as their handler hangs",
            "many at once": "where a transaction holds the jobs, they are handled one after the other",
            "restarts": "a server that is killed rolls the transactions back that hold jobs",
            "silence": "the proxy answers for a machine that is away: to the server its transactions are alive",
        },
    ),
    "side-car": QueueKind(
        {"side_car": True},
        claim_rows.claimed,
        claim_rows.OWNERS,
        triggers=(triggers.on_a_side_car, claim_rows.triggers),
        in_rows=lambda moves, _: claim_rows.as_in_rows(moves),
        columns="jobs.id, jobs.d, coalesce(c.attempts, 0) AS attempts, coalesce(c.suspect, 0) AS suspect",
        status="coalesce(c.status, 'unclaimed')",
        tables="jobs LEFT JOIN jobs_claims c ON c.id = jobs.id",
        unclaimed="jobs.id NOT IN (SELECT c.id FROM jobs_claims c WHERE c.status <> 'unclaimed')",
        filled=("jobs", "jobs_claims"),
        make=_make_beside,
    ),
}
