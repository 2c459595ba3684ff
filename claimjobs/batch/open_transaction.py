"""The open transaction of a batch: its row locks are the claim, and the handler may write in it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from claimjobs.batch.hold import HandlerWrites
from claimjobs.claim.strategy import ClaimResult
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import raised_as_sqlalchemy_does, reason
from claimjobs.database.transactions import HELD, in_utc
from claimjobs.dialects.error_codes import LOST, READ_ONLY
from claimjobs.dialects.lexis import CHANGES_NOTHING
from claimjobs.errors import BatchMisused, BatchRolledBack, CrossedFork, NoOpenTransaction, ReadOnly
from claimjobs.options import Liveness
from claimjobs.report import Report
from claimjobs.settle.refusals import is_of_a_row
from claimjobs.signals import shielded
from claimjobs.table.backend import Backend

if TYPE_CHECKING:  # it is imported by the first session, see `connection_in`
    from sqlalchemy.orm import Session

JOB: Final = "claimjobs_job"
"""The savepoint of a job."""
ABORTED: Final = (
    "a statement failed and the handler went on, but the server refuses all that follows in this transaction: let the "
    "error leave the handler, or catch it around `with connection.begin_nested():`"
)
ENDED: Final = "has no open transaction any more, because its handler committed, rolled back or closed it"


class OpenTransaction(Connector):
    """One connection for transactions that stay open while the handler works, with the settings of the engine."""

    def __init__(self, engine: sa.Engine, backend: Backend, liveness: Liveness, report: Report) -> None:
        super().__init__(engine, backend.dialect, liveness, report, tables=backend.tables_in_use)
        self._backend = backend
        self._transaction: sa.RootTransaction | None = None
        self._gone: str | None = None
        self._gone_by: BaseException | None = None
        self._ended = False
        self._listens = False
        """Whether each statement of the connection is told to the batch."""
        self.batch: BatchTransaction | None = None
        """The batch that the open transaction holds."""
        self.limits: Mapping[str, float] = {}
        """The settings by which the server ends a transaction that is open for long, with their seconds."""
        self._in_use = threading.Lock()
        """Locked during a claim and a settle, so that `break_off` does not leave a commit in doubt."""

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
    def is_open(self) -> bool:
        """Whether the transaction is open, as far as this process knows."""
        return self._transaction is not None and self._transaction.is_active

    @property
    def is_aborted(self) -> bool:
        """Whether the server refuses all that follows, because a statement failed. It keeps the locks."""
        connection = self._connection
        if not self.is_open or connection is None or connection.closed or connection.invalidated:
            return False
        return self._dialect.sessions.is_aborted(connection.connection.driver_connection)

    @property
    def _was_ended(self) -> bool:
        """Whether the handler has committed, rolled back or closed the transaction."""
        return self._transaction is not None and not self._transaction.is_active

    @contextlib.contextmanager
    def once(self, *, autocommit: bool = False) -> Iterator[sa.Connection]:
        """Roll back the last transaction, and begin one. The end of the block leaves it open; an error undoes it."""
        with shielded(), self._in_use:
            self.roll_back()
            connection = self._open()
            self._gone = self._gone_by = None
            self._ended = False
            self.batch = None
            with self._breaking(connection), contextlib.ExitStack() as undone:
                connection.rollback()  # what the handler of a batch that is over may have begun
                self._transaction = connection.begin()
                undone.callback(self.roll_back)
                with in_utc(connection, self._dialect, depends=self._depends_on_zone):
                    yield connection
                undone.pop_all()

    @contextlib.contextmanager
    def committed(self) -> Iterator[sa.Connection]:
        """Commit the transaction at the end of the block. It is not tried again, because the locks are gone.

        Raises BatchRolledBack, also if the connection breaks in the commit, which may have happened.
        """
        is_sent = False
        try:
            with self.or_gone(), shielded(), self._in_use, self._breaking(self.connection):
                yield self.connection
                is_sent = True
                self._transaction.commit()  # type: ignore[union-attr]  # it is open: `connection` says so
            if is_sent and self._gone == LOST:
                self._gone = BatchRolledBack.UNCONFIRMED
            self._must_be_there()
        finally:
            self.roll_back()

    @contextlib.contextmanager
    def or_gone(self, *, but_of_a_row: bool = False) -> Iterator[None]:
        """An error of the server in this block ends the transaction: all of it is rolled back. A handler may have kept
        the connection, so that one is closed, too. `but_of_a_row`: an error of which a row may be the cause is raised,
        if the transaction is still open.

        If the handler had ended it before, its writes may be committed; this is remembered.
        """
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            if but_of_a_row and self.is_open and is_of_a_row(error, self._dialect):
                raise
            # A DBAPIError may mean that the connection broke. Then the server ended the transaction, not the handler.
            self._ended = self._ended or (self._was_ended and not isinstance(error, sa.exc.DBAPIError))
            if self._gone is None:
                self._gone, self._gone_by = self._dialect.errors.passing_kind(error) or reason(error), error
            self.roll_back()
            self._drop()

    def _must_be_there(self) -> None:
        if self._connection is not None and self._connection.invalidated:
            self._gone = self._gone or LOST
        elif self._ended:
            raise NoOpenTransaction(ENDED) from self._gone_by
        if self._gone is not None:
            raise BatchRolledBack(self._gone) from self._gone_by

    def hold(self, claimed: ClaimResult) -> None:
        """The transaction holds these jobs, until it ends."""
        self.batch = BatchTransaction(self, claimed)
        if claimed.jobs and self._connection is not None:
            self._connection.info[HELD] = self._backend.roles.name, claimed.jobs

    def listen(self) -> None:
        """Tell the batch of each statement, until the transaction ends: a handler may have kept the connection."""
        sa.event.listen(self.connection, "before_cursor_execute", self._before_statement)
        self._listens = True

    def _before_statement(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if self.batch is not None:
            self.batch.note(statement)

    def set_savepoint(self, name: str, *, again: bool) -> None:
        """As `Sessions.set_savepoint`. Raises BatchRolledBack: a statement after that would be in no transaction."""
        connection = self.connection
        with self.or_gone(), raised_as_sqlalchemy_does(connection), closing(connection.connection.cursor()) as cursor:
            self._dialect.sessions.set_savepoint(cursor, name, again=again)
        self._must_be_there()

    def roll_back(self) -> None:
        """Roll back what is not committed. The connection stays for the next transaction."""
        connection = self._connection
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            if connection is not None and not (connection.closed or connection.invalidated):
                connection.info.pop(HELD, None)
            if self._listens and connection is not None:
                sa.event.remove(connection, "before_cursor_execute", self._before_statement)
                connection._has_events = connection.engine._has_events  # else our own statements would be slower
            self._listens = False
            with shielded():
                with contextlib.suppress(sa.exc.SQLAlchemyError):  # the server rolls back when a connection breaks
                    transaction.close()
                self._clear_up()

    def break_off(self) -> int:
        """Break the connection of an open transaction, in any thread: the server rolls back. Returns how many jobs it
        held. The handler's thread may be using the connection, so nothing can be sent through it.
        """
        with self._in_use:
            if self._transaction is None or self.batch is None:
                return 0
            self._break()
            return len(self.batch.claimed.jobs)

    def close(self) -> None:
        """Roll back, and close the connection, after a settle of another thread has ended: a driver takes no statements
        of two threads at a time. An outage may keep that one for long.
        """
        is_alone = self._in_use.acquire(timeout=self._liveness.lease)
        try:
            self.roll_back()
            super().close()
        finally:
            if is_alone:
                self._in_use.release()

    def _set_up(self, connection: sa.Connection) -> None:
        """Change no setting that the handler's statements depend on, and register no owner."""
        with connection.begin():
            self._accept_settings(connection)
            self._limit_silence(connection)
            self._require_writable(connection)
            self.limits = self._dialect.sessions.idle_limits(connection)
            self._backend.require_one_primary(connection)
            if self._gone == READ_ONLY and connection.scalar(self._dialect.sessions.read_only):
                # The last settle was refused. Some servers lock rows all the same, so the work would be done in vain.
                raise ReadOnly(self._table_name, "it refused the last settle")


class BatchTransaction(HandlerWrites):
    """What the jobs of one batch write: a savepoint for each job, set before its first statement, in place of the one
    of the job before. SQLAlchemy's own would be two round trips more for each job.

    Two more savepoints are made before those. The outer one undoes the whole batch. The inner one shows whether the
    transaction is intact: it is released before the settle writes, and the release fails if the server has rolled the
    transaction back, as after a deadlock. After such a rollback no lock protects later writes, and the settle would
    wait for whoever claimed the jobs meanwhile.
    """

    def __init__(self, transaction: OpenTransaction, claimed: ClaimResult) -> None:
        self.claimed = claimed
        self.since = time.monotonic()
        self.transaction = transaction
        self._process = os.getpid()
        self._working = False
        self._wrote = False
        """Whether the current job has its savepoint, because something was sent for it."""
        self._is_set = False
        """Whether the savepoint of this job, or of one before, is set."""
        self._outer: sa.NestedTransaction | None = None
        self._intact: sa.NestedTransaction | None = None
        self._sessions: list[Session] = []
        self.given: weakref.ref[object] | None = None
        """The Batch that the handler was given."""

    @property
    def is_dropped(self) -> bool:
        """Whether the Batch was dropped without a settle."""
        return self.given is not None and self.given() is None

    @property
    def connection(self) -> sa.Connection:
        """The connection, with its savepoints. Raises BatchRolledBack, NoOpenTransaction or CrossedFork."""
        connection = self._own.connection
        if self._outer is None:
            self._outer = connection.begin_nested()
            self._intact = connection.begin_nested()
            self.transaction.listen()
        self.save_job()
        return connection

    def save_job(self) -> None:
        """Set the savepoint of the current job, if it has none yet. It takes the place of the one of the job before."""
        if self._working and not self._wrote:
            self._wrote = True
            self._own.set_savepoint(JOB, again=self._is_set)
            self._is_set = True

    def note(self, statement: str) -> None:
        """This statement is sent next."""
        if self._working:
            self.save_job()
        elif not (self.in_loop or self.wrote_outside):  # in the loop, it is for the job that has just failed
            self.wrote_outside = CHANGES_NOTHING.match(statement) is None

    def session(self, **options: Any) -> Session:
        session = super().session(**{"join_transaction_mode": "create_savepoint", "expire_on_commit": False, **options})
        self._sessions.append(session)
        return session

    def begin_job(self) -> None:
        self._flush()
        self._working = self.in_loop = True

    def keep_job(self) -> bool:
        self._flush()
        wrote, self._wrote, self._working = self._wrote, False, False
        return wrote

    def undo_job(self) -> None:
        wrote, self._wrote, self._working = self._wrote, False, False
        if wrote or self._sessions:
            with self._own.or_gone(), contextlib.suppress(BatchRolledBack, NoOpenTransaction):  # the settle raises them
                for session in self._sessions:
                    session.rollback()
                if wrote:
                    self._own.connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {JOB}")

    def undo_all(self) -> bool:
        self._roll_back(self._intact)  # SQLAlchemy wants the inner one first
        self._roll_back(self._outer)
        wrote, self._outer, self._intact = self._outer is not None, None, None
        self._wrote = self._is_set = self.wrote_outside = False
        return wrote

    def undo_outside(self, *, of_all: bool) -> None:
        if self.wrote_outside and not of_all:
            raise BatchMisused(
                "what was written while the loop was at no job may be for any job, and cannot be undone for one: write "
                "for each job in `for job in batch`, or fail and release jobs before you write for the others"
            )
        if self.wrote_outside:
            self.undo_all()

    @contextlib.contextmanager
    def committed(self) -> Iterator[tuple[sa.Connection, sa.NestedTransaction | None, Exception | None]]:
        """A `with` block that writes the outcomes: all is committed, or nothing. It gets the connection, a savepoint
        from before all writes of the batch, if there were some, and the error if the database refuses these writes:
        roll back to the savepoint then. Raises BatchRolledBack.
        """
        refused: Exception | None = None
        try:
            try:
                self._flush()
            except sa.exc.SQLAlchemyError as error:
                refused = error
                self._roll_back(self._intact)
            with self._own.committed() as connection:
                if self._intact is not None and refused is None:
                    self._intact.commit()
                yield connection, self._outer, refused
        finally:
            for session in self._sessions:  # a session that the user keeps must not write in the next batch
                session.expunge_all()
                session.bind = None

    def _roll_back(self, savepoint: sa.NestedTransaction | None) -> None:
        if savepoint is not None:
            with self._own.or_gone():
                for session in self._sessions:
                    session.rollback()
                if savepoint.is_active:
                    savepoint.rollback()

    def _flush(self) -> None:
        """Write what the sessions still have, and end their savepoints. Raises as `keep_job`."""
        if self._outer is not None and self.transaction.is_aborted:
            raise sa.exc.StatementError(ABORTED, None, None, None)
        if self._sessions and self._own.is_open:  # else a commit would be one of a transaction of theirs
            with self._own.or_gone(but_of_a_row=True):
                for session in self._sessions:
                    session.commit()

    @property
    def _own(self) -> OpenTransaction:
        """The transaction, if it still holds this batch and this process claimed it."""
        if self._process != os.getpid():
            raise CrossedFork
        if self.transaction.batch is not self:
            raise NoOpenTransaction("has no open transaction any more")
        return self.transaction
