"""Claims held by an open transaction: its locks are the claim, and what is written through it is its outcome.

The database alone keeps the promise: if the process dies, or the connection, the server rolls back what the handler
wrote, and the jobs are free. Nobody registers, and a table needs no column for an owner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.batch import Grip
from claimjobs.claim import Algorithm, Claimed
from claimjobs.connector import Connector
from claimjobs.dialects import Key
from claimjobs.errors import BatchRolledBack, NoOpenTransaction
from claimjobs.liveness import Liveness
from claimjobs.overfetch import Search
from claimjobs.report import Report
from claimjobs.settle import Outcomes, Settler
from claimjobs.signals import shielded
from claimjobs.translate import reason

Result = TypeVar("Result")
NOBODY = 0
"""The owner of jobs that are locked and not marked."""

WHOLE: Final = sa.text("SAVEPOINT claimjobs_whole")
STILL_WHOLE: Final = sa.text("RELEASE SAVEPOINT claimjobs_whole")
"""Made when a handler first uses the connection, and gone if the transaction was rolled back behind our back."""


class OpenTransaction(Connector):
    """One connection for transactions that stay open while jobs are worked on.

    The session stays as the engine makes it: the handler's statements run in it.
    """

    def __init__(self, engine: sa.Engine, backend: Backend, liveness: Liveness, report: Report) -> None:
        super().__init__(engine, backend.dialect, liveness, report)
        self._transaction: sa.RootTransaction | None = None
        self._gone: str | None = None

    @property
    def connection(self) -> sa.Connection:
        """The connection, while its transaction is open. Raises BatchRolledBack or NoOpenTransaction."""
        self._must_be_there()
        if self._transaction is None or self._connection is None or not self._transaction.is_active:
            raise NoOpenTransaction("has no open transaction any more")
        return self._connection

    def begin(self, work: Callable[[sa.Connection], Result], *, unless: Callable[[], bool]) -> Result:
        """Run `work` in a transaction, and leave it open. Tried again as in `transaction`, if it does not succeed."""
        result: Result = self._again(None, unless)(self._begin, work)
        self._recovered()
        return result

    def _begin(self, work: Callable[[sa.Connection], Result]) -> Result:
        with shielded(), self._breaking(), contextlib.ExitStack() as undone:
            connection = self._open()
            self._gone = None
            self._transaction = connection.begin()
            undone.callback(self.close)
            result = work(connection)
            undone.pop_all()
            return result

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
        """What the server refuses here ends the transaction: all of it is rolled back."""
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            kinds = (self._dialect.broken_kind(error), self._dialect.transient_kind(error))
            self._gone = next(filter(None, kinds), None) or reason(error)
            self.close()

    def _must_be_there(self) -> None:
        if self._connection is not None and self._connection.invalidated:
            self._gone = self._gone or "connection lost"
        if self._gone is not None:
            raise BatchRolledBack(self._gone)

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

    def _welcome(self, connection: sa.Connection) -> None:
        """No settings, and no greeting: nobody is registered."""


class TransactionGrip(Grip):
    """The open transaction of one batch: a savepoint for each job in work, as soon as the connection is used."""

    def __init__(self, transaction: OpenTransaction, settle: Callable[[Outcomes, bool], set[Key]]) -> None:
        super().__init__(lambda outcomes: settle(outcomes, self._used))
        self._transaction = transaction
        self._working = False
        self._used = False
        self._job: sa.NestedTransaction | None = None
        self._whole: sa.NestedTransaction | None = None

    @property
    def connection(self) -> sa.Connection:
        connection = self._transaction.connection
        if not self._used:
            connection.execute(WHOLE)
        if self._working and self._job is None:
            self._job = connection.begin_nested()
        if not self._working and self._whole is None and not self._used:
            self._whole = connection.begin_nested()
        self._used = True
        return connection

    def enter(self) -> None:
        self._working = True
        if self._used:  # it may be at hand under another name, and be used without a word to us
            self._job = self._transaction.connection.begin_nested()

    def leave(self) -> None:
        self._working = False
        job, self._job = self._job, None
        if job is not None and job.is_active:
            with self._transaction.or_gone():
                job.commit()

    def undo(self) -> None:
        self._working = False
        job, self._job = self._job, None
        self._roll_back(job)

    def undo_all(self) -> bool:
        whole, self._whole = self._whole, None
        self._roll_back(whole)
        return whole is not None

    def _roll_back(self, savepoint: sa.NestedTransaction | None) -> None:
        if savepoint is not None and savepoint.is_active:
            with self._transaction.or_gone():
                savepoint.rollback()


class TransactionHold:
    """Claims through open transactions: each batch has one, on a connection of its own."""

    def __init__(
        self, engine: sa.Engine, backend: Backend, settler: Settler, *, liveness: Liveness, report: Report
    ) -> None:
        self._new = partial(OpenTransaction, engine, backend, liveness, report)
        self._settler = settler
        self._report = report
        self._search = Search(report)
        self._idle: list[OpenTransaction] = []
        self._busy: list[OpenTransaction] = []
        self.owner_id = NOBODY
        self.unwanted: Callable[[], bool] = lambda: False
        """Whether a claim that does not succeed at once is wanted no more."""

    def claim(self, size: int, algorithm: Algorithm) -> tuple[Claimed, Grip]:
        """Up to `size` jobs, locked by a transaction that is open, and what they are settled through."""
        transaction = self._idle.pop() if self._idle else self._new()
        self._busy.append(transaction)
        try:
            claimed = self._search(size, partial(self._take, transaction, algorithm, size))
        except BaseException:
            self._let_go(transaction)
            raise
        if not claimed.jobs:
            self._let_go(transaction)
        return claimed, TransactionGrip(transaction, partial(self._settle, transaction))

    def _take(self, transaction: OpenTransaction, algorithm: Algorithm, size: int, limit: int) -> Claimed:
        transaction.close()  # of a try that took nothing
        return transaction.begin(lambda c: algorithm(c, NOBODY, size, limit), unless=self.unwanted)

    def _settle(self, transaction: OpenTransaction, outcomes: Outcomes, used: bool) -> set[Key]:
        """Write the outcomes and commit: either all is done that was written, or nothing was.

        Where a handler has used the connection the server may have rolled back and said so to one that did not
        listen, as after a deadlock. What was written since has no lock that protects it, and is not committed.
        """

        def write(connection: sa.Connection) -> None:
            if used:
                connection.execute(STILL_WHOLE)
            self._settler.write(connection, None, outcomes)

        try:
            transaction.commit(write)
        except BatchRolledBack as gone:
            self._report.transients[gone.kind] += 1
            raise
        finally:
            self._let_go(transaction)
        outcomes.count(self._report)
        return set()

    def _let_go(self, transaction: OpenTransaction) -> None:
        transaction.close()
        if transaction in self._busy:
            self._busy.remove(transaction)
            self._idle.append(transaction)

    def give_up(self) -> None:
        """Do not try on when the database cannot be reached."""
        for transaction in (*self._busy, *self._idle):
            transaction.give_up()

    def close(self) -> None:
        """Roll back what is open, and close all connections."""
        while self._busy or self._idle:
            (self._busy or self._idle).pop().disconnect()
