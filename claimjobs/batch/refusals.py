"""Refusals: the jobs of a batch whose outcome the database refuses or swallows, so that they do not hold up the others.

A constraint, a trigger or a foreign key refuses a row with an error: the settle is halved until such a row is alone. A
trigger or a rule can also swallow a write without an error. This owner still holds such a job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import sqlalchemy as sa

from claimjobs.batch.settle import Outcomes, Settler
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect, Key
from claimjobs.errors import WriteSwallowed
from claimjobs.job import claim_of, key_of
from claimjobs.options import Retry
from claimjobs.statements import owners
from claimjobs.table.backend import Backend
from claimjobs.table.roles import Roles

Result = TypeVar("Result")
SWALLOWED: Final = (
    "the database wrote nothing into its row: a trigger or a rule swallows the write, or its key is unequal"
)

log = logging.getLogger("claimjobs.settle")


class Unsettled(NamedTuple):
    """Which jobs of a settle were not written."""

    lost: set[Key]
    """They were not this owner's any more."""
    stuck: Mapping[Key, str]
    """They are its own still: neither their outcome can be written nor that they failed; and why."""


class Refusals:
    """Settles through a connector, and fails each job whose outcome the database does not take."""

    def __init__(self, connector: Connector, backend: Backend, settler: Settler, retry: Retry) -> None:
        self._connector = connector
        self._settler = settler
        self._retry = retry
        self._roles, self._dialect = backend.roles, backend.dialect
        self._held = owners.held(backend.roles)

    def settle(self, owner: int, outcomes: Outcomes, unconfirmed: list[BaseException]) -> Unsettled:
        """Write outcomes, and change those in `outcomes` that become failures."""
        refused: dict[Key, str] = {}
        try:
            unwritten = self._settler.settle(self._connector, owner, outcomes, unconfirmed)
        except (sa.exc.DBAPIError, WriteSwallowed) as error:
            if not is_of_a_row(error, self._dialect):
                raise
            unwritten = self._in_halves(owner, outcomes, unconfirmed, refused, first=error)
        return self.follow(owner, outcomes, unwritten, refused=refused, unconfirmed=unconfirmed)

    def follow(
        self,
        owner: int,
        outcomes: Outcomes,
        unwritten: set[Key],
        *,
        refused: Mapping[Key, str],
        unconfirmed: list[BaseException],
        claimed: Iterable[Key] = (),
    ) -> Unsettled:
        """What comes after a settle: some rows were `unwritten`, some refused. `claimed`: what was claimed with it."""
        swallowed = dict.fromkeys(self._still_held(owner, unwritten) - set(claimed), SWALLOWED)
        stuck: Mapping[Key, str] = {**refused, **swallowed}
        if stuck:
            stuck = self._fail(owner, outcomes, stuck, once=set(swallowed), unconfirmed=unconfirmed)
        return Unsettled(unwritten - set(swallowed), stuck)

    def _in_halves(
        self,
        owner: int,
        outcomes: Outcomes,
        unconfirmed: list[BaseException],
        refused: dict[Key, str],
        *,
        first: Exception | None = None,
    ) -> set[Key]:
        """Settle; halve what is refused, as `halved` does. Returns the keys of the rows that were not written."""

        def write(keys: Sequence[Key]) -> set[Key]:
            return self._settler.settle(self._connector, owner, outcomes.only(set(keys)), unconfirmed)

        return set().union(*halved(outcomes.keys(), write, self._dialect, refused, first=first))

    def _still_held(self, owner: int, keys: set[Key]) -> set[Key]:
        """Those of the keys that the owner holds, as they are read: SQL may not find a row by its key."""
        if not keys:
            return set()
        held = self._connector.transaction(lambda c: c.execute(self._held, {"claimjobs_me": owner}).all())
        return keys & {key_of(row) for row in held}

    def _fail(
        self,
        owner: int,
        outcomes: Outcomes,
        refused: Mapping[Key, str],
        *,
        once: set[Key],
        unconfirmed: list[BaseException],
    ) -> Mapping[Key, str]:
        """Let those fail whose work was done. Which of them cannot, and all others that were refused.

        Of those in `once` the next try would end in the same way: they are dead at once.
        """
        failed = self._failures(outcomes, refused, once)
        again: dict[Key, str] = {}
        unwritten = self._in_halves(owner, failed, unconfirmed, again) if failed.errors else set()
        again.update(dict.fromkeys(self._still_held(owner, unwritten), SWALLOWED))
        written = failed.only(set(failed.errors) - set(again))
        for key in refused:
            outcomes.forget(key)
        for key, error in written.errors.items():
            log.error("the database refuses the outcome of job %r of %s: it failed (%s)", key, self._roles.name, error)
        outcomes.take_over(written)
        return {key: why for key, why in refused.items() if key not in written.errors}

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
    """A settle in the transaction that holds the jobs: where a row is refused its batch is undone, and marked instead.

    The locks are kept meanwhile, for only a savepoint is rolled back. Else it would be the same batch again, for ever.
    """

    def __init__(self, backend: Backend, settler: Settler, retry: Retry, outcomes: Outcomes) -> None:
        self.written = outcomes
        """What has become of the jobs."""
        self.refused: sa.exc.DBAPIError | None = None
        """Why something else was written than was meant."""
        self.was_refused = False
        """Whether the database refuses a row."""
        self._settler, self._retry = settler, retry
        self._roles, self._dialect = backend.roles, backend.dialect

    def write(self, connection: sa.Connection, *, whole: sa.NestedTransaction | None, careful: bool) -> None:
        """`whole`: the savepoint below all that was written for the jobs; without one, `careful` makes one."""
        savepoint = whole or (connection.begin_nested() if careful else None)
        try:
            self._settler.write(connection, None, self.written)
        except sa.exc.DBAPIError as error:
            self.was_refused = self._dialect.refuses_row(error)
            instead = isolating(self.written, reason(error), self._roles, self._retry)
            if not self.was_refused or savepoint is None or instead is None:
                raise
            savepoint.rollback()
            self._settler.write(connection, None, instead)
            self.written, self.refused = instead, error
        else:
            if savepoint is not None:
                savepoint.commit()

    def tell(self) -> None:
        """Name the job that is refused, once it is known."""
        for key, error in self.written.errors.items():
            if self.refused is not None and key not in self.written.suspects:
                log.error("the database refuses what became of job %r of %s: %s", key, self._roles.name, error)


def isolating(outcomes: Outcomes, why: str, roles: Roles, retry: Retry) -> Outcomes | None:
    """What is written instead of outcomes of which a row was refused, where all is undone that the batch has done.

    A done job that is alone fails, several are suspects: they are claimed again, half as many at a time. None where
    the table cannot hold that.
    """
    instead, error = outcomes.only(set(outcomes.keys()) - set(outcomes.done)), f"its outcome cannot be written: {why}"
    if not (outcomes.done and roles.can_retry and roles.can_be_dead and roles.can_suspect):
        return None
    for key in outcomes.done:
        failures = roles.value_of("attempts", claim_of(outcomes.jobs[key]), 0)
        if len(outcomes.done) == 1:
            instead.fail(key, roles.kept_of(error), None if retry.is_last(failures) else retry.wait(failures))
        else:
            instead.suspects[key], instead.errors[key] = retry.wait(failures), roles.kept_of(error)
    return instead


def is_of_a_row(error: Exception, dialect: Dialect) -> bool:
    """Whether a write was refused, or swallowed, because of what single rows are."""
    return isinstance(error, WriteSwallowed) or dialect.refuses_row(error)


def halved(
    keys: Sequence[Key],
    write: Callable[[Sequence[Key]], Result],
    dialect: Dialect,
    refused: dict[Key, str],
    *,
    first: Exception | None = None,
) -> list[Result]:
    """What `write` returns for the halves of some keys, which were refused as a whole by the error `first`.

    A key that is refused alone goes into `refused`, with the reason.
    """
    if first is not None and len(keys) > 1:
        middle = len(keys) // 2
        return [
            *halved(keys[:middle], write, dialect, refused),
            *halved(keys[middle:], write, dialect, refused),
        ]
    try:
        return [write(keys)] if first is None else _alone(keys, refused, first)
    except (sa.exc.DBAPIError, WriteSwallowed) as error:
        if not is_of_a_row(error, dialect):
            raise
        return halved(keys, write, dialect, refused, first=error)


def _alone(keys: Sequence[Key], refused: dict[Key, str], error: Exception) -> list[Result]:
    refused.update(dict.fromkeys(keys, reason(error)))
    return []
