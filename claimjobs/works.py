"""Works: what a Queue has found out about its database, and has built for it. Each once, when it is first needed."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from claimjobs import advisory
from claimjobs.anti_join import anti_join
from claimjobs.assign import Assigner, Way
from claimjobs.backend import Backend, leased, look_at
from claimjobs.batch import Batch, Grip
from claimjobs.choices import Choices
from claimjobs.claim import Algorithm, algorithm
from claimjobs.connect import connected
from claimjobs.connector import Connector
from claimjobs.dialects.types import database_now, statement_now
from claimjobs.errors import CrossedFork
from claimjobs.hand import Hand
from claimjobs.janitor import Janitor
from claimjobs.phases import Claimed
from claimjobs.report import Report
from claimjobs.ring import Ringer
from claimjobs.selection import Where, order_of, predicates_of
from claimjobs.settle import Settler
from claimjobs.statements.find import Selection
from claimjobs.statements.side_car import Pair
from claimjobs.statements.sleepers import work
from claimjobs.transaction import TransactionHold
from claimjobs.translate import predicate_errors
from claimjobs.turn import Turn, turn


class Works:
    """The machinery behind a Queue, in the process that made it: raises CrossedFork in any other one."""

    def __init__(self, engine: sa.Engine, choices: Choices, report: Report) -> None:
        self._engine = engine
        self._choices = choices
        self._report = report
        self._process = os.getpid()
        self._preparing = threading.RLock()
        self._backend: Backend | None = None
        self._algorithm: tuple[Where, Algorithm] | None = None
        self._turn: Turn | None = None
        self._hand: Hand | TransactionHold | None = None
        self._assigner: Assigner | None = None
        self._ringer: tuple[Backend, Ringer] | None = None
        self._way: tuple[Where, Way] | None = None
        self._work: tuple[Where, sa.ColumnElement[Any]] | None = None
        self._finalizers: list[Callable[[], Any]] = []
        self.on_new_hand: Callable[[Hand | TransactionHold], None] = lambda _: None
        """Called with a hand before its first claim."""

    # --- the database ----------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """The server and the tables. Raises ConnectionFailed, ServerTooOld or UnfitTable."""
        if self._process != os.getpid():
            raise CrossedFork
        with self._preparing:
            if self._backend is None:
                chosen = self._choices
                given: dict[str, Any] = {"columns": chosen.columns, "side_car": chosen.side_car}
                self._backend = look_at(self._engine, chosen.table, chosen.dialect, by_lease=chosen.by_lease, **given)
            return self._backend

    @property
    def claimed_from(self) -> Backend:
        """The same for claims: where rows are assigned, what a lease takes is looked at with the first claim."""
        backend = self.backend
        if self._choices.by_lease and not backend.by_lease:
            with connected(self._engine) as connection:
                backend = self._backend = leased(connection, backend)
        return backend

    @contextmanager
    def connector(self) -> Iterator[Connector]:
        """A connection apart from the one that claims, for as long as it is needed."""
        connector = self._new_connector()
        try:
            yield connector
        finally:
            connector.close()

    def _new_connector(self) -> Connector:
        return Connector(self._engine, self.backend.dialect, self._choices.liveness, self._report)

    # --- what is built ---------------------------------------------------------------------------------

    @property
    def hand(self) -> Hand | TransactionHold:
        """What holds claims. One by lease is registered as an owner."""
        backend = self.claimed_from  # also for one that is there already: not after a fork
        with self._preparing:
            if self._hand is None:
                self._hand = self._new_hand(backend)
                self.on_new_hand(self._hand)
                self._finalizers.append(weakref.finalize(self, self._hand.close))
            return self._hand

    def _new_hand(self, backend: Backend) -> Hand | TransactionHold:
        settler, liveness = self.settler(), self._choices.liveness
        if not self._choices.by_lease:
            return TransactionHold(self._engine, backend, settler, liveness=liveness, report=self._report)
        retry = self._choices.retry
        return Hand(self._engine, backend, settler, liveness=liveness, retry=retry, report=self._report)

    @property
    def assigner(self) -> Assigner:
        """What gives rows to workers. Raises NoAssignee or NotExclusive."""
        backend = self.backend
        with self._preparing:
            if self._assigner is None:
                connector = self._new_connector()
                self._finalizers.append(weakref.finalize(self, _close_unless_forked, connector, os.getpid()))
                self._assigner = Assigner(connector, backend)
            return self._assigner

    @property
    def ringer(self) -> Ringer:
        """What calls owners that sleep."""
        backend = self.backend
        with self._preparing:
            if self._ringer is None or self._ringer[0] is not backend:
                session_locks = self._choices.liveness.session_lock is not False
                self._ringer = (backend, Ringer(self._engine, backend, session_locks=session_locks))
            return self._ringer[1]

    @contextmanager
    def janitor(self) -> Iterator[Janitor]:
        """What reclaims, through a connection of its own."""
        backend = self.claimed_from
        with self.connector() as connector:
            yield Janitor(connector, backend, self.settler(), self._choices.retry)

    def settler(self) -> Settler:
        """What writes outcomes. Raises UnfitTable where the table cannot hold what becomes of done jobs."""
        backend, chosen = self.backend, self._choices
        given: dict[str, Any] = {"locked": not chosen.by_lease, "source": backend.apart}
        # In a transaction that was open while jobs were worked on, its beginning is long ago.
        lasts = not chosen.by_lease and isinstance(chosen.now, database_now)
        now = statement_now() if lasts else chosen.now
        return Settler(backend.roles, backend.dialect, now, chosen.finishing, **given)

    # --- what is claimed, and how ----------------------------------------------------------------------

    def claim(self, size: int, where: Where) -> tuple[Claimed, Grip]:
        """A claim that is made now. Raises BadPredicate."""
        hand = self.hand
        with self.understood(where):
            return hand.claim(size, self.algorithm(where))

    def batch(self, claimed: Claimed, grip: Grip) -> Batch:
        """What was claimed, as a user gets it."""
        batch = Batch(claimed.jobs, self.backend.roles, grip, self._choices.retry, entity=self._choices.entity)
        batch.contended = bool(claimed.found) and not claimed.jobs
        batch.kept_alive = self if claimed.jobs else None
        return batch

    def turn(self, where: Where) -> Turn:
        """How a batch is settled and the next one claimed at once; built as often as the algorithm."""
        algorithm = self.algorithm(where)
        if self._turn is None or self._turn.algorithm is not algorithm:
            self._turn = turn(self.settler(), algorithm)
        return self._turn

    def algorithm(self, where: Where) -> Algorithm:
        """Built once for a predicate that stays the same; anew for each claim where a callable gives it."""
        built = self._algorithm
        if self._changes(where) or built is None or built[0] is not where:
            self._algorithm = built = (where, self._build(where))
        return built[1]

    def _build(self, where: Where) -> Algorithm:
        backend, selection, chosen = self.backend, self.selection(where), self._choices
        if chosen.lock == "advisory":
            declared = chosen.liveness.session_lock
            return advisory.algorithm(backend, selection, chosen.now, chosen.hold, session_lock=declared)
        choose = algorithm if backend.apart is None else anti_join
        return choose(backend, selection, chosen.now, chosen.hold)

    def way(self, where: Where) -> Way:
        """How a row is assigned that `where` allows; as often built as an algorithm."""
        built = self._way
        if self._changes(where) or built is None or built[0] is not where:
            order = () if self._choices.order_by is None else self.selection(None).order
            self._way = built = (where, self.assigner.way(Selection(self.selection(where).ready, order)))
        return built[1]

    def selection(self, where: Where) -> Selection:
        """What may be claimed now, and in which order."""
        roles, chosen = self.backend.source, self._choices
        narrower = (*predicates_of(chosen.where, roles), *predicates_of(where, roles))
        return Selection(sa.and_(roles.due(chosen.now), *narrower), order_of(chosen.order_by, roles))

    def trial(self, where: Where, *, ordered: bool = False) -> None:
        """Let the database read what a claim would look for. Raises sqlalchemy.exc.DBAPIError."""
        selection, key = self.selection(where), self.backend.source.key
        order = selection.order if ordered else ()
        with connected(self._engine) as connection:
            connection.execute(sa.select(*key).where(selection.ready).order_by(*order).limit(0))

    @contextmanager
    def understood(self, where: Where) -> Iterator[None]:
        """Raises BadPredicate or BadOrder for what the database cannot read."""
        with predicate_errors(
            self.backend.dialect, lambda: self._reads(where) and not self._reads(where, ordered=True)
        ):
            yield

    def _reads(self, where: Where, *, ordered: bool = False) -> bool:
        try:
            self.trial(where, ordered=ordered)
        except sa.exc.DBAPIError:
            return False
        return True

    def work(self, where: Where) -> sa.ColumnElement[Any] | None:
        """NULL where there is nothing to claim; None for a predicate that is another one with each claim."""
        if self._changes(where):
            return None
        built = self._work
        if built is None or built[0] is not where:
            self._work = built = (where, self._look_for(self.selection(where)))
        return built[1]

    def _look_for(self, selection: Selection) -> sa.ColumnElement[Any]:
        backend = self.backend
        if backend.apart is None:
            return work(backend.source, selection)
        pair = Pair(backend.apart, backend.roles, backend.dialect, self._choices.now)
        return work(backend.source, replace(selection, ready=sa.and_(selection.ready, pair.company >= 0)))

    def _changes(self, where: Where) -> bool:
        return callable(self._choices.where) or callable(where)

    def look_back(self) -> None:
        """There may be new jobs anywhere in the order."""
        if self._hand is not None:
            self._hand.look_back()

    def close(self) -> None:
        """Close whatever is open. It is built again when it is needed again."""
        while self._finalizers:
            self._finalizers.pop()()
        self._hand = self._assigner = None


def _close_unless_forked(connector: Connector, process: int) -> None:
    """In a forked child the connection is its parent's."""
    if process == os.getpid():
        connector.close()
