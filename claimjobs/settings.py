"""Settings: the parameters of a Queue, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.callables import deferred
from claimjobs.claim.locking import Locking
from claimjobs.dialects import Dialect
from claimjobs.errors import BadArgument
from claimjobs.options import (
    CLAIMS,
    FINISHES,
    HOLDS,
    KINDS,
    LEAVE,
    ClaimsKind,
    HoldKind,
    Kind,
    Liveness,
    PerKey,
    Retry,
)
from claimjobs.settle.failures import Hooks
from claimjobs.settle.settler import OnDone
from claimjobs.table.backend import Backend, inspect_table
from claimjobs.table.columns import Columns
from claimjobs.table.predicates import OrderBy, Where
from claimjobs.table.reflection import TableLike, map_of
from claimjobs.table.roles import REQUIRED

GIVEN: Final[dict[str, tuple[type[Any] | tuple[type[Any], ...], str]]] = {
    "locking": (Locking, "a Locking, such as AdvisoryLocks()"),
    "per_key": (PerKey, "a PerKey, such as PerKey('customer_id', at_most=2)"),
    "side_car": ((str, bool), "True, False, or the name of the second table, or a SideCar"),
}
"""What is given for an option, and an example."""
NOT_FOR: Final[dict[tuple[Kind, str], tuple[str, str]]] = {
    ("side-car", "locking"): ("is not for a side-car, whose claims lock the rows of its table", "leave it out"),
    ("side-car", f"on_done={LEAVE!r}"): ("is not for a side-car, which knows by its key what is done", "leave it out"),
    ("side-car", "on_duplicate"): ("cannot see states that are kept in a side-car", "leave out rows by 'skip'"),
    ("transaction", "per_key"): (
        "needs hold='lease'",
        "what an open transaction has claimed is seen by nobody, and not counted",
    ),
    ("transaction", "abatches"): ("would block the event loop with hold='transaction'", "loop over `batches`"),
    ("transaction", "work"): (
        "needs hold='lease'",
        "a transaction handles one job after the other: loop over `batches`",
    ),
}
"""The options and methods that a kind of queue does not have: why, and what to do."""
NEEDED: Final[dict[tuple[Kind, bool], Sequence[str]]] = {("rows", False): REQUIRED, ("rows", True): ("owner_id",)}
"""The roles for which a table must have columns, by the kind of the queue, and whether there is a map."""


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
    """None: the default of the kind, see `options.KINDS`."""
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
            if hook is not None and not callable(hook):
                raise ValueError(f"{name}={hook!r}: give a function of a job and its error")
        for name, (needed, example) in GIVEN.items():
            given = getattr(self, name)
            if given is not None and not isinstance(given, needed):
                raise ValueError(f"{name}={given!r}: give {example}")
        if self.on_done == LEAVE and (self.where is None or callable(self.where)):
            raise ValueError(
                "on_done='leave' needs a `where` that stays the same, which the handler makes false: give it"
            )
        self._check_kind()

    def _check_kind(self) -> None:
        chosen = {"locking": self.locking, "per_key": self.per_key, f"on_done={LEAVE!r}": self.on_done == LEAVE or None}
        _ = self.kind  # raises for values that do not go together
        for option, given in chosen.items():
            if given is not None:
                self.require(option)
        if self.locking is not None and self.hold not in self.locking.holds:
            holds = " or ".join(map(repr, self.locking.holds))
            raise ValueError(f"locking={type(self.locking).__name__} needs hold={holds}")
        if self.locking is not None and self.per_key is not None:
            raise ValueError("per_key locks jobs in a way of its own: leave out locking, or per_key")

    @property
    def kind(self) -> Kind:
        """Where claims are recorded and outcomes are written. Raises ValueError for values that do not go together."""
        found = KINDS.get((self.hold, self.claims, bool(self.side_car)))
        if found is None:
            raise ValueError(
                f"hold={self.hold!r}, claims={self.claims!r} and side_car={self.side_car!r} do not go together: "
                "with a side-car a lease holds each claim, which is recorded as one row for its batch; with "
                "hold='transaction' row locks are the claim: leave out hold, claims or side_car"
            )
        return found

    def require(self, what: str) -> None:
        """Raises BadArgument if this kind of queue has not this option or method."""
        if refused := NOT_FOR.get((self.kind, what)):
            why, instead = refused
            raise BadArgument(f"{what} {why}: {instead}")
        if what == "on_duplicate" and not self.locks_rows:
            how = type(self.locking).__name__
            raise BadArgument(
                f"{what} waits for the row lock of a job in hand, and {how} takes none: leave out on_duplicate"
            )

    def inspect(self, engine: sa.Engine) -> Backend:
        """The server and the tables. Raises ConnectionFailed, ServerUnfit or UnfitTable."""
        per_batch = self.kind in ("batches", "side-car")
        needed = NEEDED.get((self.kind, self.map is not None), ())
        kind: dict[str, Any] = {"by_lease": self.by_lease, "per_batch": per_batch, "needed": needed}
        given: dict[str, Any] = {"columns": self.columns, "side_car": self.side_car, "per_key": self.per_key}
        found = inspect_table(engine, self.table, self.dialect, **given, **kind)
        # A claim that does not lock the rows excludes none by lease.
        return replace(found, locks_rows=self.locks_rows)

    @property
    def map(self) -> Columns | None:
        """The map that was given, or that of the Table or mapped class."""
        return self.columns or map_of(self.table)

    @property
    def locks_rows(self) -> bool:
        """Whether claims lock the rows of their jobs."""
        return "lease" in (HOLDS if self.locking is None else self.locking.holds)

    @property
    def by_lease(self) -> bool:
        return self.hold == "lease"


def must_work_when_called(function: Any, name: str) -> None:
    """Raise ValueError for a function whose call runs none of its lines, such as an async one."""
    kind = deferred(function)
    if kind is not None:
        raise ValueError(f"{name} is {kind}, of which a call runs nothing: give a plain function")


def _one_of(given: Any, allowed: tuple[Any, ...], name: str) -> None:
    if given not in allowed:
        raise ValueError(f"{name}={given!r}: give one of {', '.join(map(repr, allowed))}")
