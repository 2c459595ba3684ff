"""Settings: the parameters of a Queue, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from claimjobs.callables import deferred
from claimjobs.claim.locking import Locking
from claimjobs.dialects import Dialect
from claimjobs.errors import BadArgument
from claimjobs.options import (
    CLAIMS,
    FINISHES,
    HOLDS,
    LEAVE,
    ClaimsKind,
    HoldKind,
    Liveness,
    Retry,
    is_per_batch,
)
from claimjobs.per_key import PerKey
from claimjobs.settle.failures import Hooks
from claimjobs.settle.settler import OnDone
from claimjobs.table.backend import Backend, inspect_table
from claimjobs.table.columns import Columns
from claimjobs.table.predicates import OrderBy, Where
from claimjobs.table.reflection import TableLike, map_of


@dataclass(frozen=True)
class Settings:
    """The parameters of a Queue, with their defaults. Raises ValueError."""

    table: TableLike
    columns: Columns | None
    where: Where
    order_by: OrderBy
    locking: Locking | None
    """None: row locks."""
    per_key: PerKey | None
    hold: HoldKind
    claims: ClaimsKind | None
    """None: the default, see `options.is_per_batch`."""
    side_car: str | bool
    also_writes: Sequence[str]
    """Columns of the user's table that are written beside the side-car."""
    retry: Retry
    liveness: Liveness
    on_done: OnDone | None
    """None: the default of the table, see `queue.access.Access.default_finish`."""
    dialect: Dialect | None
    now: sa.ColumnElement[Any]
    hooks: Hooks

    def __post_init__(self) -> None:
        _one_of(self.hold, HOLDS, "hold")
        _one_of(self.claims, (*CLAIMS, None), "claims")
        if self.on_done is not None and not callable(self.on_done):
            _one_of(self.on_done, (*FINISHES, LEAVE), "on_done")
        for name, function in {"on_done": self.on_done, "where": self.where, **vars(self.hooks)}.items():
            must_work_when_called(function, name)
        for name, hook in vars(self.hooks).items():
            _must_be_callable(hook, name)
        if self.on_done == LEAVE and (self.where is None or callable(self.where)):
            raise ValueError(
                "on_done='leave' needs a `where` that stays the same, which the handler makes false: give it"
            )
        if not isinstance(self.side_car, (str, bool)):
            raise ValueError(  # noqa: TRY004
                f"side_car={self.side_car!r}: give True, False, or the name of the second table, or a SideCar"
            )
        if self.side_car and self.on_done == LEAVE:
            raise ValueError("on_done='leave' is not for a side-car, which knows by its key what is done: leave it out")
        is_per_batch(self.claims, self.hold, self.side_car)
        if self.locking is not None:
            self._check_locking(self.locking)
        if self.per_key is not None:
            self._check_per_key(self.per_key)

    def need_lease(self, why: str) -> None:
        """Raises BadArgument, with these words, if open transactions hold the claims."""
        if not self.by_lease:
            raise BadArgument(why)

    def _check_per_key(self, per_key: PerKey) -> None:
        if not isinstance(per_key, PerKey):
            raise ValueError(f"per_key={per_key!r}: give a PerKey, such as PerKey('customer_id', at_most=2)")  # noqa: TRY004
        self.need_lease(
            "per_key needs hold='lease': what an open transaction has claimed is seen by nobody, and not counted"
        )
        if self.locking is not None:
            raise ValueError("per_key locks jobs in a way of its own: leave out locking, or per_key")

    def _check_locking(self, locking: Locking) -> None:
        if not isinstance(locking, Locking):
            raise ValueError(f"locking={locking!r}: give a Locking, such as AdvisoryLocks()")  # noqa: TRY004
        name = type(locking).__name__
        if self.side_car:
            raise ValueError(
                f"locking={name} is not for a side-car, whose claims lock the rows of its table: leave it out"
            )
        if self.hold not in locking.holds:
            raise ValueError(f"locking={name} needs hold={' or '.join(map(repr, locking.holds))}")

    def inspect(self, engine: sa.Engine) -> Backend:
        """The server and the tables. Raises ConnectionFailed, ServerUnfit or UnfitTable."""
        kind: dict[str, Any] = {"by_lease": self.by_lease, "per_batch": self.per_batch, "side_car": self.side_car}
        if self.per_key is not None:
            kind["per_key"] = self.per_key
        found = inspect_table(engine, self.table, self.dialect, columns=self.columns, **kind)
        # A claim that does not lock the rows excludes none by lease.
        return replace(found, locks_rows=self.locking is None or "lease" in self.locking.holds)

    @property
    def map(self) -> Columns | None:
        """The map that was given, or that of the Table or mapped class."""
        return self.columns or map_of(self.table)

    @property
    def any_order(self) -> bool:
        """Whether jobs are claimed in no order."""
        return isinstance(self.order_by, (list, tuple)) and not self.order_by

    @property
    def per_batch(self) -> bool:
        """Whether a claim is recorded as one row for its batch."""
        return is_per_batch(self.claims, self.hold, self.side_car)

    @property
    def by_lease(self) -> bool:
        """Whether an owner holds claims, by its lease."""
        return self.hold == "lease"

    @property
    def entity(self) -> type[Any] | None:
        """The table, if it is a mapped class."""
        return self.table if isinstance(self.table, type) else None


def _must_be_callable(hook: Any, name: str) -> None:
    if hook is not None and not callable(hook):
        raise ValueError(f"{name}={hook!r}: give a function of a job and its error")


def must_work_when_called(function: Any, name: str) -> None:
    """Raise ValueError for a function whose call runs none of its lines, such as an async one."""
    kind = deferred(function)
    if kind is not None:
        raise ValueError(f"{name} is {kind}, of which a call runs nothing: give a plain function")


def _one_of(given: Any, allowed: tuple[Any, ...], name: str) -> None:
    if given not in allowed:
        raise ValueError(f"{name}={given!r}: give one of {', '.join(map(repr, allowed))}")
