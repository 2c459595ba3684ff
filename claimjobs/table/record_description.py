"""How an owner records its claims, and which records it sees: written into its row, for all who share the table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED, UNCLAIMED
from claimjobs.table.roles import ColumnRoles

NOTHING: Final = "nothing"
"""The kind of an owner whose claims are row locks only, so that no record is left when it dies."""


@dataclass(frozen=True)
class Difference:
    """How the claims of others differ from ours."""

    how: str
    """Who they are, and what is not seen."""
    step: str
    reclaim: str
    """The command that reclaims the jobs of such an owner, if it is dead."""


@dataclass(frozen=True)
class RecordDescription:
    """The kind of an owner's records (`rows`, `batches` or `nothing`), and a description of each kind that it sees.

    Two programs see each other's records only if their descriptions are the same text: it names the columns of the
    key, and the side-car, or for claims in rows the columns of the state, with their values.
    """

    kind: str | None
    """None: a consumer of an earlier version, which does not say it."""
    sees: tuple[str, ...]
    """Empty: it locks no rows, and so excludes no claim that is recorded."""

    @classmethod
    def of(cls, backend: Backend) -> RecordDescription:
        """Those of a program with this backend."""
        if not backend.locks_rows:
            return cls(NOTHING, ())
        seen = backend.roles
        keyed = {} if backend.key_rows is None else {"per_key": [column.name for column in backend.key_rows.of_jobs]}
        if not (backend.by_lease and backend.records_claims):
            return cls(NOTHING, (_by_row(seen),))
        if seen.claim_rows is None:
            return cls("rows", (_by_row(seen, **keyed),))
        beside = {} if backend.user_table is None else {"side_car": seen.table.name}
        return cls("batches", (_text({"batches": _key(seen), **beside, **keyed}),))

    @classmethod
    def in_row(cls, kind: str | None, sees: str | None) -> RecordDescription:
        """Those that the row of an owner says."""
        return cls(kind, tuple(json.loads(sees)) if sees else ())

    @property
    def without_limits(self) -> RecordDescription:
        """The same without `per_key`: who only reads sees the claims, whatever limits they keep."""
        seen = (json.loads(one) for one in self.sees)
        return replace(self, sees=tuple(_text({k: v for k, v in one.items() if k != "per_key"}) for one in seen))

    @property
    def row(self) -> dict[str, Any]:
        """The values for the row of an owner."""
        return {"kind": self.kind, "sees": json.dumps(self.sees)}

    @property
    def are_claims(self) -> bool:
        """Whether such an owner records its claims."""
        return self.kind != NOTHING

    @property
    def left(self) -> Sequence[str]:
        """The descriptions of what is left when such an owner dies."""
        return self.sees if self.are_claims else ()

    def agree_with(self, other: RecordDescription) -> bool:
        """Whether each of two owners sees the claims of the other one."""
        if self.kind is None or other.kind is None:
            return True
        return {*self.left} <= {*other.sees} and {*other.left} <= {*self.sees}

    def difference_from(self, theirs: RecordDescription, table: str, *, beside: bool) -> Difference:
        """How claims of this table differ that do not agree. `beside`: ours are beside a side-car."""
        if not (theirs.sees and self.sees):
            who = "with hold='lease'" if theirs.sees else "whose Locking locks no rows"
            here = "a Locking that locks no rows" if theirs.sees else "a claim by lease"
            how = f"{who}, and {here} excludes no claim of theirs"
            return Difference(how, "give all consumers of a table the same hold and locking", "`claimjobs reclaim`")
        if (
            beside or theirs._has_side_car or theirs._is_per_batch == self._is_per_batch
        ):  # to claim otherwise is no help
            both = f"{theirs.sees[0]}, and here {self.sees[0]}"
            who = f"with another map of its columns, or another side-car or per_key ({both})"
            step = "give all consumers of a table the same Columns, the same side_car and the same per_key"
            return Difference(f"{who}, so their claims are not seen", step, "`claimjobs reclaim` with theirs")
        claims = "rows" if self.kind == "batches" else "batches"
        way, options, python = f"claims={self.kind!r}", f"--claims {claims}", f"claims={claims!r}"
        if not self.are_claims:
            way, options, python = "hold='transaction'", f"{options} --hold lease", f"{python}, hold='lease'"
        how = f"with claims={claims!r}, whose claims are not seen with {way}"
        named = "" if table == "jobs" else f" --table {shlex.quote(table)}"
        return Difference(how, f"add {options} ({python})", f"`claimjobs reclaim {options}{named}`")

    @property
    def _is_per_batch(self) -> bool:
        return self.sees[0].startswith('{"batches"')

    @property
    def _has_side_car(self) -> bool:
        return '"side_car"' in self.sees[0]


def _by_row(roles: ColumnRoles, **more: Any) -> str:
    state = roles.state
    column = None if state.column is None else state.column.name
    owner = None if state.owner is None else state.owner.name
    values = {name: _plain(state.values.get(name)) for name in (UNCLAIMED, CLAIMED)}
    return _text({"rows": _key(roles), "owner": owner, "status": column, **values, **more})


def _key(roles: ColumnRoles) -> list[str]:
    return [column.name for column in roles.key]


def _plain(value: Any) -> Any:
    """A value as text: a program may have a boolean or a member of an Enum where another one has a number or a name."""
    if value is None:
        return None
    return str(value.name if isinstance(value, Enum) else int(value) if isinstance(value, bool) else value)


def _text(description: dict[str, Any]) -> str:
    return json.dumps(description)
