"""A job: one row, and the key that names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Job(Mapping[str, Any]):
    """A row as it is now that it is claimed (`owner_date` alone may be from before that).

    Its columns are attributes (`job.address`) and items (`job["address"]`).

    `key` is the primary key: a value, or a tuple where the key has several columns. A column that is itself
    called `key` is reached as an item.
    """

    __slots__ = ("_claim", "_row", "key")

    def __init__(self, key: Any, row: Mapping[str, Any], claim: Mapping[str, Any] | None = None) -> None:
        self.key = key
        self._row = row
        self._claim = row if claim is None else claim

    def __getattr__(self, column: str) -> Any:
        try:
            return self._row[column]
        except KeyError:
            raise AttributeError(f"job {self.key!r} has no column {column!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Job, (self.key, dict(self._row), None if self._claim is self._row else dict(self._claim))

    def __getitem__(self, column: str) -> Any:
        return self._row[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<Job {self.key!r}>"


def claim_of(job: Job) -> Mapping[str, Any]:
    """What is known of the claim on a job: its row, or what a table of claims beside it says."""
    return job._claim
