"""Claims held by an open transaction: its locks are the claim, and what is written through it is its outcome.

The database alone keeps the promise: if the process dies, or the connection, the server rolls back what the handler
wrote, and the jobs are free. Nobody registers, and a table needs no column for an owner.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from claimjobs.batch.batch import Grip
from claimjobs.batch.refusals import IsolatingSettle
from claimjobs.batch.settle import Outcomes, Settler
from claimjobs.claim.search import Search
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, ClaimStrategy
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.errors import BatchRolledBack, CrossedFork, NoOpenTransaction
from claimjobs.options import Liveness, Retry
from claimjobs.report import Report
from claimjobs.signals import shielded
from claimjobs.table.backend import Backend

Result = TypeVar("Result")
ENDED = "has no open transaction any more, for its handler committed, rolled back or closed it"
NOBODY = 0
"""The owner of jobs that are locked and not marked."""


class OpenTransaction(Connector):
    """One connection for transactions that stay open while jobs are worked on.

    The session stays as the engine makes it: the handler's statements run in it.
    """

    def __init__(self, engine: sa.Engine, backend: Backend, liveness: Liveness, report: Report) -> None:
        super().__init__(engine, backend.dialect, liveness, report, tables=backend.tables_in_use)
        self._transaction: sa.RootTransaction | None = None
        self._gone: str | None = None
        self._gone_by: BaseException | None = None
        self._ended = False
        self.number = 0
        """Of its transactions; a batch knows its own one by it."""

    @property
    def connection(self) -> sa.Connection:
        """The connection, while its transaction is open. Raises BatchRolledBack or NoOpenTransaction."""
        self._must_be_there()
        if self._was_ended:
            raise NoOpenTransaction(ENDED)
        if self._transaction is None or self._connection is None:
            raise NoOpenTransaction("has no open transaction any more")
        return self._connection

    @property
    def _was_ended(self) -> bool:
        """Whether somebody has committed, rolled back or closed what is ours to end."""
        return self._transaction is not None and not self._transaction.is_active

    def begin(self, work: Callable[[sa.Connection], Result], *, unless: Callable[[], bool]) -> Result:
        """Run `work` in a transaction, and leave it open. Tried again as in `transaction`, if it does not succeed."""
        return self.transaction(work, unless=unless)

    @contextlib.contextmanager
    def once(self, unconfirmed: list[BaseException] | None = None, *, alone: bool = False) -> Iterator[sa.Connection]:
        """A single try: a transaction that the end of the block leaves open, and an exception rolls back."""
        del unconfirmed, alone  # nothing is committed here
        with shielded(), self._breaking(), contextlib.ExitStack() as undone:
            connection = self._open()
            self._gone = self._gone_by = None
            self._ended = False
            self.number += 1
            self._transaction = connection.begin()
            undone.callback(self.close)
            yield connection
            undone.pop_all()

    def commit(self, work: Callable[[sa.Connection], object]) -> None:
        """Run `work` at the end of the transaction, and commit it. It is not tried again: what it held is free.

        Raises BatchRolledBack.
        """
        with contextlib.closing(self):
            with self.or_gone(), shielded(), self._breaking():
                work(self.connection)
                self._transaction.commit()  # type: ignore[union-attr]  # it is open: `connection` says so
            self._must_be_there()

    @contextlib.contextmanager
    def or_gone(self) -> Iterator[None]:
        """What the server refuses here ends the transaction: all of it is rolled back.

        But not where it had been ended before: then what was written may be committed.
        """
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            # A connection that breaks is no transaction any more, either; that is the server's doing.
            self._ended = self._ended or (self._was_ended and not isinstance(error, sa.exc.DBAPIError))
            kinds = (self._dialect.broken_kind(error), self._dialect.transient_kind(error))
            self._gone, self._gone_by = next(filter(None, kinds), None) or reason(error), error
            self.close()

    def _must_be_there(self) -> None:
        if self._connection is not None and self._connection.invalidated:
            self._gone = self._gone or "connection lost"
        elif self._ended:
            raise NoOpenTransaction(ENDED) from self._gone_by
        if self._gone is not None:
            raise BatchRolledBack(self._gone) from self._gone_by

    def close(self) -> None:
        """Roll back what is not committed, and clear up. The connection stays for the next transaction."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            with shielded():
                with contextlib.suppress(sa.exc.SQLAlchemyError):  # a connection that is lost has rolled back
                    transaction.close()
                self._clear_up()

    def disconnect(self) -> None:
        """Roll back, and close the connection."""
        self.close()
        super().close()

    def _set_up(self, connection: sa.Connection) -> None:
        """No settings, and no greeting: nobody is registered."""


class TransactionGrip(Grip):
    """The open transaction of one batch: a savepoint for each job in work, as soon as the connection is used.

    Below them is one for the whole batch. It is gone if the server has rolled the transaction back, as after a
    deadlock, and a handler goes on that did not listen: what it writes then has no lock that protects it.
    """

    ends_with_its_settle = True

    def __init__(
        self, transaction: OpenTransaction, settle: Callable[[Outcomes, sa.NestedTransaction | None], set[Key]]
    ) -> None:
        super().__init__(self._settle)
        self._transaction = transaction
        self._number = transaction.number
        self._process = os.getpid()
        self._write = settle
        self._working = False
        self._job: sa.NestedTransaction | None = None
        self._whole: sa.NestedTransaction | None = None
        self._sessions: list[Session] = []

    @property
    def connection(self) -> sa.Connection:
        connection = self._mine.connection
        if self._whole is None:
            self._whole = connection.begin_nested()
        if self._working and self._job is None:
            self._job = connection.begin_nested()
        return connection

    def session(self, **options: Any) -> Session:
        usual = {"join_transaction_mode": "create_savepoint", "expire_on_commit": False}
        session = Session(self.connection, **{**usual, **options})
        self._sessions.append(session)
        return session

    def enter(self) -> None:
        if self._whole is not None:  # it may be at hand under another name, and be used without a word to us
            self._flush()
            self._job = self._mine.connection.begin_nested()
        self._working = True

    def leave(self) -> bool:
        if self._job is not None:
            self._flush()
            with self._mine.or_gone():
                self._job.commit()
        wrote, self._job, self._working = self._job is not None, None, False
        return wrote

    def undo(self) -> None:
        self._roll_back(self._job)
        self._job, self._working = None, False

    def undo_all(self) -> bool:
        self._roll_back(self._whole)
        wrote, self._whole = self._whole is not None, None
        return wrote

    def _roll_back(self, savepoint: sa.NestedTransaction | None) -> None:
        if savepoint is not None:
            with self._mine.or_gone():
                for session in self._sessions:
                    session.rollback()
                if savepoint.is_active:
                    savepoint.rollback()

    def _flush(self) -> None:
        """What sessions have not written yet belongs to the job in work; their savepoints must not outlast its own."""
        with self._mine.or_gone():
            for session in self._sessions:
                session.commit()

    def _settle(self, outcomes: Outcomes) -> set[Key]:
        try:
            self._flush()
            return self._write(outcomes, self._whole)
        finally:
            for session in self._sessions:  # one that is kept must not write into the next batch's transaction
                session.expunge_all()
                session.bind = None

    @property
    def _mine(self) -> OpenTransaction:
        """The transaction, as long as it is this batch's, in the process that claimed it."""
        if self._process != os.getpid():
            raise CrossedFork
        if self._number != self._transaction.number:
            raise NoOpenTransaction("has no open transaction any more")
        return self._transaction


class TransactionHold:
    """Claims through open transactions: each batch has one, on a connection of its own."""

    def __init__(
        self,
        engine: sa.Engine,
        backend: Backend,
        settler: Settler,
        *,
        liveness: Liveness,
        retry: Retry,
        report: Report,
    ) -> None:
        self._new = partial(OpenTransaction, engine, backend, liveness, report)
        self._backend, self._settler, self._retry = backend, settler, retry
        self._is_careful = False
        """Whether a settle has a savepoint of its own: a row was refused, and without one all locks were gone."""
        self._report = report
        self._search = Search(report)
        self._process = os.getpid()
        self._idle: list[OpenTransaction] = []
        self._busy: list[OpenTransaction] = []
        self.owner_id = NOBODY
        self.sleeper = None
        """Nobody is registered who could be called."""
        self.unwanted: Callable[[], bool] = lambda: False
        """Whether a claim that does not succeed at once is wanted no more."""

    def claim(self, size: int, algorithm: ClaimStrategy) -> tuple[ClaimResult, Grip]:
        """Up to `size` jobs, locked by a transaction that is open, and what they are settled through."""
        transaction = self._idle.pop() if self._idle else self._new()
        self._busy.append(transaction)
        try:
            claimed = self._searched(transaction, size, algorithm)
        except BaseException:
            self._let_go(transaction)
            raise
        if not claimed.jobs:
            self._let_go(transaction)
        return claimed, TransactionGrip(transaction, partial(self._settle, transaction))

    def _searched(self, transaction: OpenTransaction, size: int, strategy: ClaimStrategy) -> ClaimResult:
        while True:
            request = self._search.next_request(size, strategy)
            result = self._claim_once(transaction, strategy, request)
            self._search.learn(request, result)
            if self._search.is_over(request, result):
                return result

    def _claim_once(self, transaction: OpenTransaction, strategy: ClaimStrategy, request: ClaimRequest) -> ClaimResult:
        transaction.close()  # of a try that claimed nothing
        work = lambda connection: strategy.claim(connection, NOBODY, request)  # noqa: E731
        return transaction.begin(work, unless=self.unwanted)

    def _settle(self, transaction: OpenTransaction, outcomes: Outcomes, whole: sa.NestedTransaction | None) -> set[Key]:
        """Write the outcomes and commit: either all is done that was written, or nothing was."""
        settling = IsolatingSettle(self._backend, self._settler, self._retry, outcomes)
        settled = False
        try:
            transaction.commit(partial(settling.write, whole=whole, careful=self._is_careful))
            settled = True
        except BatchRolledBack as gone:
            self._report.transients[gone.kind] += 1
            self._is_careful = self._is_careful or settling.was_refused
            raise
        finally:
            self._let_go(transaction)
            if not (settled and settling.written.all_done):  # some of them are free
                self._search.look_back()
        settling.written.count(self._report)
        if settling.refused is not None:
            settling.tell()
            raise BatchRolledBack(reason(settling.refused), isolates=True) from settling.refused
        return set()

    def _let_go(self, transaction: OpenTransaction) -> None:
        transaction.close()
        if transaction in self._busy:
            self._busy.remove(transaction)
            self._idle.append(transaction)

    def look_back(self) -> None:
        """There may be jobs before those that were claimed last."""
        self._search.look_back()

    def give_up(self) -> None:
        """Do not try on when the database cannot be reached."""
        for transaction in (*self._busy, *self._idle):
            transaction.give_up()

    def close(self) -> None:
        """Roll back what is open, and close all connections. In a forked child they are its parent's."""
        while self._process == os.getpid() and (self._busy or self._idle):
            (self._busy or self._idle).pop().disconnect()
