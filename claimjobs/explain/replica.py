"""The replica on which a claim would search: whether it can, how far it is behind, and the plan of that search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.candidates import CandidateFinder
from claimjobs.claim.replica import LONGEST_READ, MOST_LAG, TAKES_WRITES, lag_of, not_longer_than, why_left
from claimjobs.claim.replica_url import said_of_the_replica
from claimjobs.claim.strategy import ClaimRequest, Phase
from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError, ReplicaUnfit
from claimjobs.explain.plans import Planned
from claimjobs.explain.sent import as_sent
from claimjobs.explain.subject import SIZE, Subject
from claimjobs.findings import Finding
from claimjobs.options import Liveness
from claimjobs.statements import owners

WITHOUT: Final = "without a replica claims search on the primary"


class ExplainedReplica:
    """A connection to the replica, and what is found there."""

    def __init__(self, connection: sa.Connection, subject: Subject) -> None:
        self._connection, self._subject = connection, subject
        finder = CandidateFinder(subject.backend, subject.plan.selection)
        self._search = finder.phase(ClaimRequest(SIZE, SIZE))

    def is_small(self) -> bool:
        """Whether the table is so small there that a plan says little."""
        return self._subject.is_small(self._connection)

    def use(self) -> Finding:
        """Whether it can be read, and what is done there. Raises the error of the driver."""
        backend = self._subject.backend
        with not_longer_than(LONGEST_READ, backend.dialect.sessions.break_connection, self._connection):
            self._connection.execute(self._search.statement, self._search.parameters).close()
        nobody = {"claimjobs_me": 0, "claimjobs_started": None}
        self._connection.execute(owners.beat_of(backend.owners), nobody).close()
        if not backend.dialect.sessions.is_read_only(self._connection):
            return Finding("replica", "warning", TAKES_WRITES)
        says = (
            "it is read-only, and has the tables and columns that a search reads: a claim searches there, then locks "
            "on the primary and checks again there; if it gets no job so, it searches on the primary"
        )
        return Finding("replica", "ok", says)

    def lag(self, owner: sa.Row[Any] | None) -> Finding:
        """How far it is behind, as a consumer measures it. `owner`: as it is on the primary."""
        rule = f"a consumer searches on the primary while that is more than {MOST_LAG:g} s"
        if owner is None:
            says = "not known, because no owner writes heartbeats now, by which it is measured"
            return Finding("replica lag", "not known", f"{says}: explain again while a consumer works; {rule}")
        parameters = {"claimjobs_me": owner.id, "claimjobs_started": owner.started}
        shown = self._connection.execute(owners.beat_of(self._subject.backend.owners), parameters).all()
        lag = lag_of(owner, shown, Liveness(lease=owner.lease))
        if left := why_left(lag, is_shown=bool(shown)):
            step = "check that the URL is that of a replica of this database, and that replication runs"
            return Finding("replica lag", "warning", f"{left}: consumers search on the primary meanwhile; {step}")
        if not shown:
            says = f"not known: owner {owner.id} registered {lag:.1f} s ago, and is not there yet"
            return Finding("replica lag", "not known", f"{says}: explain again in {MOST_LAG:g} s; {rule}")
        return Finding("replica lag", "ok", f"it is {lag:.1f} s behind, by the heartbeats of owner {owner.id}; {rule}")

    def planned(self) -> Planned:
        """The search with its plan there. Raises the error of the driver."""
        name, statement, parameters = self._search
        sql, sent = as_sent(self._connection, statement, parameters)
        plan = self._subject.inspection.plan(self._connection, sql, sent)
        return Planned(Phase(f"{name} on the replica", statement, parameters), sql, plan)


def oldest_owner(primary: sa.Connection, subject: Subject) -> sa.Row[Any] | None:
    """An owner that writes heartbeats, of any table: all are replicated. A consumer takes one of its own process."""
    return primary.execute(owners.oldest_alive(subject.backend.owners, subject.backend.dialect)).one_or_none()


@contextmanager
def opened(subject: Subject, replica: sa.Engine, seconds: float) -> Iterator[ExplainedReplica]:
    """The replica, for so many seconds: its host may vanish without a word. Raises ConnectionFailed."""
    with connected(replica) as pooled:
        connection = pooled.execution_options(isolation_level="AUTOCOMMIT")
        connection.detach()
        with not_longer_than(seconds, subject.backend.dialect.sessions.break_connection, connection):
            yield ExplainedReplica(connection, subject)


@contextmanager
def as_finding(subject: Subject, findings: list[Finding]) -> Iterator[None]:
    """Add a finding in place of an error of the replica, so that the findings about the primary are not lost."""
    try:
        with said_of_the_replica():
            yield
    except ClaimjobsError as error:
        findings.append(unusable(error))
    except sa.exc.SQLAlchemyError as error:
        findings.append(unusable(ReplicaUnfit(subject.backend.source.name, reason(error))))


def unusable(error: ClaimjobsError) -> Finding:
    """The finding about a replica that cannot be used."""
    return Finding("replica", "will not work", f"{error}; {WITHOUT}")
