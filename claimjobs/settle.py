"""Settle: write what became of a batch, one statement for each kind of outcome, each guarded by the owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, Literal

import sqlalchemy as sa

from claimjobs.connector import Connector
from claimjobs.dialects import Dialect, Key
from claimjobs.roles import Roles
from claimjobs.statements import settle as statements

OnDone = Literal["delete", "keep"]
Write = tuple[Any, dict[str, Any]]

MANY: Final = 10_000
"""Keys of one statement: a protocol may count parameters in 16 bits."""
FEW: Final = 200
"""Jobs of one statement that says something else of each of them. With the longest errors it is 2 MB at most, below
any limit of packets in use; and a CASE of n branches for n rows costs n * n."""


@dataclass
class Outcomes:
    """What became of the jobs of a batch, by their keys."""

    done: list[Key] = field(default_factory=list)
    released: list[Key] = field(default_factory=list)
    retried: dict[Key, float] = field(default_factory=dict)
    """Seconds to wait before each runs again."""
    dead: list[Key] = field(default_factory=list)
    suspects: dict[Key, float] = field(default_factory=dict)
    """Something went wrong that names none of them: seconds to wait before each runs again, in smaller company."""
    loners: set[Key] = field(default_factory=set)
    """Those of `retried` and `dead` that nobody named: they were alone when something went wrong."""
    errors: dict[Key, str] = field(default_factory=dict)
    """What went wrong with each job of `retried`, `dead` and `suspects`."""

    def keys(self) -> list[Key]:
        """All of them."""
        return [*self.done, *self.released, *self.retried, *self.dead, *self.suspects]

    def forget(self, key: Key) -> None:
        """Take back what was said of a job."""
        self.retried.pop(key, None)
        self.suspects.pop(key, None)
        self.loners.discard(key)
        self.errors.pop(key, None)
        for decided in (self.done, self.released, self.dead):
            if key in decided:
                decided.remove(key)

    def only(self, held: set[Key]) -> Outcomes:
        """Those of the keys that are still held."""
        return Outcomes(
            done=[key for key in self.done if key in held],
            released=[key for key in self.released if key in held],
            retried={key: wait for key, wait in self.retried.items() if key in held},
            dead=[key for key in self.dead if key in held],
            suspects={key: wait for key, wait in self.suspects.items() if key in held},
            loners=self.loners & held,
            errors={key: error for key, error in self.errors.items() if key in held},
        )


class _SomeAreLost(Exception):  # rolls a transaction back; no error that anyone sees
    """A write reached fewer jobs than it was meant for."""


class Settler:
    """Writes outcomes for jobs of one table."""

    def __init__(self, roles: Roles, dialect: Dialect, now: sa.ColumnElement[Any], on_done: OnDone) -> None:
        self._roles = roles
        self._dialect = dialect
        self._now = now
        self._done = statements.keep(roles, dialect, now) if on_done == "keep" else statements.delete(roles, dialect)
        self._release = statements.release(roles, dialect)
        self._still_mine = statements.still_mine(roles, dialect)

    def settle(
        self, connector: Connector, me: int, outcomes: Outcomes, doubts: list[BaseException] | None = None
    ) -> set[Key]:
        """Write the outcomes in one transaction; return the keys that `me` no longer held.

        Those are left as they are: somebody else decides about them now. Written twice the outcomes do no harm.
        `doubts` as for `Connector.transaction`.
        """
        if self._dialect.returns_what_it_writes:
            return connector.transaction(partial(self._write_and_compare, me=me, outcomes=outcomes), doubts=doubts)
        try:
            return connector.transaction(partial(self._write_and_count, me=me, outcomes=outcomes), doubts=doubts)
        except _SomeAreLost:
            return connector.transaction(partial(self._look_then_write, me=me, outcomes=outcomes), doubts=doubts)

    def write(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> None:
        """Write outcomes of jobs that this transaction has locked."""
        for statement, values in self._writes(outcomes):
            connection.execute(statement, {**values, "me": me})

    def _write_and_compare(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        lost: set[Key] = set()
        for statement, values in self._writes(outcomes):
            rows = connection.execute(statement, {**values, "me": me})
            lost.update(set(values["keys"]) - {key_of(row) for row in rows})
        return lost

    def _write_and_count(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        """The same where nothing is returned. A count says that some are lost, not which: then look first."""
        for statement, values in self._writes(outcomes):
            if connection.execute(statement, {**values, "me": me}).rowcount != len(values["keys"]):
                raise _SomeAreLost
        return set()

    def _look_then_write(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        keys = outcomes.keys()
        held: set[Key] = set()
        for some in _cut(keys, MANY):
            held.update(key_of(row) for row in connection.execute(self._still_mine, {"keys": some, "me": me}))
        self.write(connection, me, outcomes.only(held))
        return set(keys) - held

    def _writes(self, outcomes: Outcomes) -> Iterator[Write]:
        """The statements for those kinds of outcome that there are, each with its parameters."""
        retry, company = partial(statements.retry, loners=outcomes.loners), {"company": len(outcomes.suspects)}
        for keys in _cut(outcomes.done, MANY):
            yield self._done, {"keys": keys}
        for keys in _cut(outcomes.released, MANY):
            yield self._release, {"keys": keys}
        for keys in _cut(outcomes.retried, FEW):
            yield self._again(retry, keys, outcomes.retried, outcomes.errors)
        for keys in _cut(outcomes.dead, FEW):
            errors = {key: outcomes.errors[key] for key in keys}
            yield statements.bury(self._roles, self._dialect, self._now, errors), {"keys": keys}
        for keys in _cut(outcomes.suspects, FEW):
            statement, values = self._again(statements.suspect, keys, outcomes.suspects, outcomes.errors)
            yield statement, {**values, **company}

    def _again(self, build: Any, keys: list[Key], delays: dict[Key, float], errors: dict[Key, str]) -> Write:
        chosen = {key: errors[key] for key in keys}
        waits = {key: delays[key] for key in keys}
        return build(self._roles, self._dialect, self._now, errors=chosen, delays=waits), {"keys": keys}


def _cut(keys: Iterable[Key], size: int) -> Iterator[list[Key]]:
    """The keys in their order, so many at a time."""
    rest = iter(keys)
    while some := list(islice(rest, size)):
        yield some


def key_of(row: Any) -> Key:
    """The key in a row of key columns."""
    return row[0] if len(row) == 1 else tuple(row)
