"""How an owner records its claims, and which records it sees: written into its row, for all who share the table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED, UNCLAIMED
from claimjobs.table.job_state import plain
from claimjobs.table.roles import ColumnRoles

NOTHING: Final = "nothing"
"""The kind of an owner whose claims are row locks only, so that no record is left when it dies."""


@dataclass(frozen=True)
class RecordDescription:
    """The kind of an owner's records (`rows`, `batches` or `nothing`), and a description of each kind that it sees.

    Two programs see each other's records only if their descriptions are the same text: it names the columns of the
    key, and the side-car, or for claims in rows the columns of the state, with their values.
    """

    kind: str
    sees: tuple[str, ...]
    """Empty: it locks no rows, and so excludes no claim that is recorded."""

    @classmethod
    def of(cls, backend: Backend) -> RecordDescription:
        """The description of a program with this backend."""
        if not backend.locks_rows:
            return cls(NOTHING, ())
        seen = backend.roles
        keyed = {} if backend.key_rows is None else {"per_key": [column.name for column in backend.key_rows.of_jobs]}
        if not (backend.by_lease and backend.records_claims):
            return cls(NOTHING, (_by_row(seen),))
        if seen.claim_rows is None:
            return cls("rows", (_by_row(seen, **keyed),))
        beside = {"side_car": seen.table.name} if backend.has_side_car else {}
        return cls("batches", (json.dumps({"batches": seen.key_names, **beside, **keyed}),))

    @classmethod
    def in_row(cls, kind: str, sees: str) -> RecordDescription:
        """The description in the row of an owner."""
        return cls(kind, tuple(json.loads(sees)))

    @property
    def without_limits(self) -> RecordDescription:
        """The same without `per_key`: who only reads sees the claims, whatever limits they keep."""
        seen = (json.loads(one) for one in self.sees)
        return replace(self, sees=tuple(json.dumps({k: v for k, v in one.items() if k != "per_key"}) for one in seen))

    @property
    def row(self) -> dict[str, Any]:
        """The values for the row of an owner."""
        return {"kind": self.kind, "sees": json.dumps(self.sees)}

    @property
    def are_claims(self) -> bool:
        """Whether such an owner records its claims."""
        return self.kind != NOTHING

    def sees_claims_of(self, other: RecordDescription) -> bool:
        """Whether it sees all that another owner has left when that dies."""
        return not other.are_claims or {*other.sees} <= {*self.sees}

    @property
    def option(self) -> str:
        """The option of a command that claims in this way, after a blank."""
        return f" --claims {self.kind}" if self.are_claims else ""

    def in_words(self, other: RecordDescription) -> str:
        """This way in the words of options, and what else differs from the other one."""
        if not self.sees:
            return "a Locking that locks no rows"
        way = f"claims={self.kind!r}" if self.are_claims else "hold='transaction'"
        return way if self.kind != other.kind else f"{way} and {self.sees[0]}"


def _by_row(roles: ColumnRoles, **more: Any) -> str:
    owner, status = (None if column is None else column.name for column in (roles.owner_id, roles.status))
    values = {name: plain(roles.state.values.get(name)) for name in (UNCLAIMED, CLAIMED)}
    return json.dumps({"rows": roles.key_names, "owner": owner, "status": status, **values, **more})
