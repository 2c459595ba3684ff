"""SettleWithRefusals: each settle by a lease. If the database refuses or swallows an outcome, the others are settled.

A constraint, a trigger or a foreign key refuses a row with an error of any kind: whatever is no conflict and no outage
is halved until such a row is alone. A trigger or a rule can also swallow a write without an error: then this owner
still holds the job. If it is the text of an error that is refused, the job fails with less of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import sqlalchemy as sa

from claimjobs.database.clock import in_utc
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.database.transactions import savepoint
from claimjobs.dialects import Dialect, Key
from claimjobs.errors import StatementTimedOut, WriteSwallowed
from claimjobs.job import claim_of, key_of
from claimjobs.options import Retry
from claimjobs.settle.outcomes import Outcomes
from claimjobs.settle.settler import Settler
from claimjobs.table.backend import Backend
from claimjobs.table.roles import ColumnRoles

REFUSALS: Final = (sa.exc.StatementError, StatementTimedOut, UnicodeError, WriteSwallowed)
"""What a write may raise for a row of it. UnicodeError is a driver's own, if its encoding has no such character."""

SHORTER: Final = (600, 150)
"""Characters of an error that are stored if the whole is refused: by an index, which holds some 2,700 bytes, or by a
column that holds less than its type says. Then it is stored as ASCII, and then not at all."""

SWALLOWED: Final = (
    "the database wrote nothing into its row: a trigger or a rule swallows the write, or its key is unequal"
)


class Unsettled(NamedTuple):
    """Which jobs of a settle were not written."""

    lost: set[Key]
    """This owner did not hold them any more."""
    stuck: Mapping[Key, str]
    """This owner still holds them, because neither their outcome nor their failure can be written; with the reason."""
    later: Outcomes
    """Those outcomes of `stuck` jobs that may be written later: what refuses them may pass."""
    held: Collection[Key] = ()
    """The keys of all jobs that this owner held then, where some were not written."""
    are_duplicates: bool = False
    """Whether a unique index refuses each stuck job, because another row has its values."""


class SettleWithRefusals:
    """Settles through a connector, and makes failed each job whose outcome the database refuses or swallows."""

    def __init__(self, connector: Connector, backend: Backend, settler: Settler, retry: Retry) -> None:
        self._connector = connector
        self._settler = settler
        self._retry = retry
        self._roles, self._dialect = backend.roles, backend.dialect
        self._held = settler.record.held

    def settle(self, owner: int, outcomes: Outcomes) -> Unsettled:
        """Write outcomes, and change those in `outcomes` that become failures."""
        refused: dict[Key, str] = {}
        parts = WriteInHalves(outcomes.keys(), self._dialect, refused, table=self._roles.table.name)
        unwritten = self._settle_parts(parts, owner, outcomes)
        given = replace(outcomes.only(set(refused)), batch=outcomes.batch, losses=outcomes.losses) if refused else None
        unsettled = self.follow(owner, outcomes, unwritten, refused=refused)
        if given is not None and parts.refused_all is not None and len(unsettled.stuck) >= len(given):
            outcomes.become(given)
            raise parts.refused_all  # nor can any failure be recorded: it is not about the rows
        return unsettled

    def follow(
        self,
        owner: int,
        outcomes: Outcomes,
        unwritten: set[Key],
        *,
        refused: Mapping[Key, str],
        claimed: Iterable[Key] = (),
    ) -> Unsettled:
        """After a settle: make failed the jobs that were refused, and those whose write was swallowed.

        `unwritten`: keys of rows in which nothing was written. `claimed`: keys that the settle's transaction claimed.
        """
        held = set(self.held_by(owner)) - set(claimed) if unwritten else set()
        swallowed = dict.fromkeys(unwritten & held, SWALLOWED)  # compared in Python: SQL may not find a row by its key
        stuck: Mapping[Key, str] = {**refused, **swallowed}
        lost = unwritten - set(swallowed)
        if not stuck:
            return Unsettled(lost, {}, Outcomes(), held)
        once = {key for key, why in stuck.items() if why == SWALLOWED}
        return self._fail(owner, outcomes, stuck, once=once)._replace(lost=lost, held=held)

    def _settle_parts(
        self,
        parts: WriteInHalves,
        owner: int,
        outcomes: Outcomes,
        patience: float | None = None,
        *,
        divisible: bool | None = None,
    ) -> set[Key]:
        """Settle part by part. Returns the keys of the rows that were not written.

        A row that takes too long alone is written last: if others were written by then, it is not the server.
        """
        last: set[Key] = set()
        unwritten: set[Key] = set()
        for keys in parts:
            part = outcomes if len(keys) == len(outcomes) else outcomes.only(set(keys))
            can_wait = len(keys) < len(outcomes) and not last.issuperset(keys)
            alone = can_wait or (False if parts.has_written else divisible)
            try:
                unwritten |= self._settle_with_less_text(owner, part, patience, divisible=alone)
            except REFUSALS as error:
                if can_wait and len(keys) == 1 and isinstance(error, StatementTimedOut):
                    last.update(keys)
                    parts.write_last(keys)
                else:
                    parts.refuse(keys, error)
        return unwritten

    def _settle_with_less_text(
        self, owner: int, part: Outcomes, patience: float | None, *, divisible: bool | None
    ) -> set[Key]:
        """Write outcomes. If a single failed job is refused, less and less of its error is written."""
        try:
            return self._settler.settle(self._connector, owner, part, patience, divisible=divisible)
        except REFUSALS as error:
            if len(part) > 1 or isinstance(error, StatementTimedOut) or not is_of_a_row(error, self._dialect):
                raise
            for less in with_less_text(part):
                try:
                    return self._settler.settle(self._connector, owner, less, patience, divisible=divisible)
                except REFUSALS as again:
                    raise_unless_of_a_row(again, self._dialect)
            raise

    def held_by(self, owner: int, patience: float | None = None) -> list[Key]:
        """The keys of all jobs that an owner holds."""
        return [key_of(row) for row in self._connector.rows(self._held, {"claimjobs_me": owner}, patience)]

    def _fail(self, owner: int, outcomes: Outcomes, refused: Mapping[Key, str], *, once: set[Key]) -> Unsettled:
        """Make failed the refused jobs that were done, and write what was refused of the others; return what is stuck.

        The jobs in `once` are dead at once, because the next try would end in the same way.
        """
        wanted = outcomes.only(set(refused) - set(outcomes.done))
        wanted.add(self._failures(outcomes, refused, once))
        written, later, are_duplicates = self._written_of(owner, wanted)
        for key in refused:
            outcomes.forget(key)
        outcomes.add(written)
        wrote = set(written.keys())
        stuck = {key: why for key, why in refused.items() if key not in wrote}
        return Unsettled(set(), stuck, later, are_duplicates=are_duplicates and len(later) == len(stuck))

    def settle_again(self, owner: int, wanted: Outcomes) -> tuple[Outcomes, Outcomes]:
        """Write outcomes that were refused before: those that are written now, and those that are refused again."""
        written, later, _ = self._written_of(owner, wanted, patience=0)
        return written, later

    def _written_of(
        self, owner: int, wanted: Outcomes, patience: float | None = None
    ) -> tuple[Outcomes, Outcomes, bool]:
        """Write outcomes: those that are written, those that are refused, and whether a unique index refuses each of
        these. Both are without the jobs that are lost."""
        refused: dict[Key, str] = {}
        parts = WriteInHalves(wanted.keys(), self._dialect, refused, table=self._roles.table.name)
        unwritten = self._settle_parts(parts, owner, wanted, patience, divisible=False)
        swallowed = unwritten.intersection(self.held_by(owner)) if unwritten else set()
        refused.update(dict.fromkeys(swallowed, SWALLOWED))
        written = wanted.only(set(wanted.keys()) - unwritten - set(refused))
        return written, wanted.only(set(refused)), refused.keys() <= parts.duplicates

    def _failures(self, outcomes: Outcomes, refused: Mapping[Key, str], once: set[Key]) -> Outcomes:
        failed = Outcomes(jobs=outcomes.jobs)
        if self._roles.can_retry and self._roles.can_be_dead:
            done = set(outcomes.done)
            for key in refused:
                if key in done and key in outcomes.jobs:
                    failures = self._roles.value_of("attempts", claim_of(outcomes.jobs[key]), 0)
                    last = key in once or self._retry.is_last(failures)
                    error = self._roles.kept_of(f"its outcome cannot be written: {refused[key]}")
                    failed.fail(key, error, None if last else self._retry.wait(failures))
        return failed


class IsolatingSettle:
    """A settle in the transaction that holds the jobs. If a row is refused, it undoes the batch and marks suspects.

    Only a savepoint is rolled back, so the locks are kept. Without the marks the next claim would get the same batch.
    """

    def __init__(self, backend: Backend, settler: Settler, retry: Retry, outcomes: Outcomes) -> None:
        self.written = outcomes
        """The outcomes that were written."""
        self.refused: Exception | None = None
        """The error because of which other outcomes were written than were given."""
        self.was_refused = False
        """Whether the database refused a row."""
        self._settler, self._retry = settler, retry
        self._roles, self._dialect = backend.roles, backend.dialect
        self._depends_on_zone = backend.source.depend_on_zone

    def write(self, connection: sa.Connection, *, whole: sa.NestedTransaction | None, with_savepoint: bool) -> None:
        """Write the outcomes. `whole`: a savepoint from before all writes of the batch.

        `with_savepoint`: make one before the settle, so that it can be written again without what is refused.
        """
        with_savepoint = with_savepoint or bool(self.written.errors or self.written.columns)  # which may be refused
        try:
            self._write(connection, self.written, with_savepoint=with_savepoint)
        except WriteSwallowed:
            raise  # not known of which job
        except REFUSALS as error:
            self.was_refused = is_of_a_row(error, self._dialect)
            if not self.was_refused or not (with_savepoint or whole is not None):
                raise
            if not (with_savepoint and self._wrote_with_less_text(connection, self.written)):
                self._isolate(connection, error, whole)
                return
        if whole is not None:
            whole.commit()

    def _write(self, connection: sa.Connection, outcomes: Outcomes, *, with_savepoint: bool = True) -> None:
        """Write outcomes in UTC: the session has the handler's zone, and a rollback to a savepoint restores that."""
        utc = in_utc(connection, self._dialect, depends=self._depends_on_zone)
        with savepoint(connection) if with_savepoint else contextlib.nullcontext(), utc:
            self._settler.write_locked(connection, None, outcomes)

    def _wrote_with_less_text(self, connection: sa.Connection, outcomes: Outcomes) -> bool:
        """Write the outcomes with less and less of their errors; return whether that was possible."""
        for less in with_less_text(outcomes):
            try:
                self._write(connection, less)
            except REFUSALS as error:
                raise_unless_of_a_row(error, self._dialect)
            else:
                return True
        return False

    def _isolate(self, connection: sa.Connection, error: Exception, whole: sa.NestedTransaction | None) -> None:
        """Undo the batch, and write other outcomes. Raises the error if that is not possible."""
        instead = isolating(self.written, reason(error), self._roles, self._retry)
        if instead is None:
            raise error
        if whole is not None:
            whole.rollback()
        try:
            self._write(connection, instead)
        except REFUSALS as again:
            if not (is_of_a_row(again, self._dialect) and self._wrote_with_less_text(connection, instead)):
                raise
        self.written, self.refused = instead, error


def with_less_text(outcomes: Outcomes) -> Iterator[Outcomes]:
    """The same outcomes with less and less of the texts of their errors; at last without them."""
    if not outcomes.errors:
        return
    texts = dict(outcomes.errors)
    for longest in SHORTER:
        shorter = {key: text if len(text) <= longest else text[: longest - 1] + "…" for key, text in texts.items()}
        if shorter != texts:
            texts = shorter
            yield replace(outcomes, errors=texts)
    plain = {key: text.encode("ascii", "backslashreplace").decode()[: SHORTER[-1]] for key, text in texts.items()}
    if plain != texts:
        yield replace(outcomes, errors=plain)
    yield replace(outcomes, stores_texts=False)


def isolating(outcomes: Outcomes, why: str, roles: ColumnRoles, retry: Retry) -> Outcomes | None:
    """The outcomes to write instead, after a row was refused and all writes of the batch were undone.

    A single done job failed; several are suspects. None if the table cannot store that.
    """
    instead, error = outcomes.only(set(outcomes.keys()) - set(outcomes.done)), f"its outcome cannot be written: {why}"
    if not (outcomes.done and roles.can_isolate):
        return None
    for key in outcomes.done:
        failures = roles.value_of("attempts", claim_of(outcomes.jobs[key]), 0)
        if len(outcomes.done) == 1:
            instead.fail(key, roles.kept_of(error), None if retry.is_last(failures) else retry.wait(failures))
        else:
            instead.suspects[key], instead.errors[key] = retry.wait(failures), roles.kept_of(error)
    return instead


def is_of_a_row(error: Exception, dialect: Dialect) -> bool:
    """Whether a single row may be the cause why a write was refused or swallowed."""
    return not isinstance(error, sa.exc.DBAPIError) or dialect.errors.may_be_of_a_row(error)


def raise_unless_of_a_row(error: Exception, dialect: Dialect) -> None:
    """Raise an error of which no single row is the cause."""
    if not is_of_a_row(error, dialect):
        raise error


class WriteInHalves:
    """Keys to be written: all at once, and what the database refuses in halves, until the bad row is alone.

    `for keys in parts:` write them, and call `refuse` where the database refuses that.
    """

    def __init__(
        self, keys: Sequence[Key], dialect: Dialect, refused: dict[Key, str], *, table: str | None = None
    ) -> None:
        """`refused` collects the keys that were refused alone, with the reason.

        `table`: the name of the table. If the account may not write it, that is not about single rows.
        """
        self._dialect = dialect
        self._refused = refused
        self._table = table
        self._parts = [keys] if keys else []
        self._is_written = False
        self.has_written = False
        """Whether some part was written before the present one."""
        self._error: Exception | None = None
        self.duplicates: set[Key] = set()
        """The keys that were refused alone by a unique index."""

    def __iter__(self) -> Iterator[Sequence[Key]]:
        while self._parts:
            before, self._is_written = self.has_written, True
            yield self._parts.pop()
            self.has_written = self._is_written = self._is_written or before

    @property
    def refused_all(self) -> Exception | None:
        """The error by which the keys were refused, if none was written, and the error does not say that it is about a
        row."""
        error = self._error
        certain = not isinstance(error, sa.exc.DBAPIError) or self._dialect.errors.refuses_row(error)
        return None if self._is_written or certain else error

    @contextlib.contextmanager
    def writing(self, keys: Sequence[Key]) -> Iterator[None]:
        """A block that writes these keys. What the database refuses in it is tried in halves."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            self.refuse(keys, error)

    def write_last(self, keys: Sequence[Key]) -> None:
        """Write these keys, which were not written now, after all others."""
        self._is_written = False
        self._parts.insert(0, keys)

    def refuse(self, keys: Sequence[Key], error: Exception) -> None:
        """These keys were refused: their halves are next. Raises an error that is not about single rows."""
        raise_unless_of_a_row(error, self._dialect)
        if self._table is not None and self._dialect.errors.denied_table(error) == self._table:
            raise error
        self._is_written, self._error = False, error
        if len(keys) == 1:
            self._refused[keys[0]] = SWALLOWED if isinstance(error, WriteSwallowed) else reason(error)
            if (
                isinstance(error, sa.exc.DBAPIError)
                and self._dialect.errors.code(error) in self._dialect.errors.duplicate
            ):
                self.duplicates.add(keys[0])
        else:
            middle = len(keys) // 2
            self._parts += [keys[middle:], keys[:middle]]
