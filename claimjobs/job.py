"""A job: one row, and the key that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claimjobs.errors import Unreadable
from claimjobs.key_text import key_in_message

Convert = Callable[[Any], Any] | None
RowLayout = Mapping[str, tuple[int, Convert]]
"""For each column: its position in a row of values, and the function that makes its value; None: it is the value."""


@dataclass(frozen=True)
class UnreadableValue:
    """In place of a value that its driver could not read."""

    text: str
    """The value as the server sends it, its type, and the driver's error."""


class Done:
    """What a handler of a job may return: values of columns that are written with the outcome, as by `Batch.done`."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns


class PartlyRead(tuple[Any, ...]):
    """A row with some values that are `UnreadableValue`."""

    __slots__ = ()


class Job(Mapping[str, Any]):
    """A claimed row, with its values after the claim (only `owner_date` may be from before it).

    Its columns are attributes (`job.address`) and items (`job["address"]`). One that Python cannot hold (`infinity` on
    Postgres) raises Unreadable when it is read.

    `key` is the primary key: a value, or a tuple where the key has several columns. A column that is itself
    called `key` is reached as an item. `cancelled` says whether a heartbeat found that this process does not hold the
    job any more: it was cancelled, or given to others. If a column is called so, it is that: see `Batch.holds`.
    """

    __slots__ = ("_entry", "_layout", "_made", "_row", "is_lost", "key")

    def __init__(
        self,
        key: Any,
        row: Mapping[str, Any] | Sequence[Any],
        entry: Mapping[str, Any] | None = None,
        layout: RowLayout | None = None,
    ) -> None:
        """`row`: the columns by name; or values, whose columns are in `layout`. A value is converted when it is read,
        because the jobs of a whole batch are made before the first one is worked on.
        """
        self.key = key
        self._row: Any = row
        self._entry = entry
        self._layout = layout
        self._made: dict[str, Any] | None = None
        self.is_lost = False

    def __getattr__(self, column: str) -> Any:
        try:
            return self[column]
        except KeyError:
            if column == "cancelled":
                return self.is_lost
            raise AttributeError(f"job {key_in_message(self.key)} has no column {column!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Job, (self.key, dict(self), None if self._entry is None else dict(self._entry))

    def __getitem__(self, column: str) -> Any:
        if self._layout is None:
            return self._row[column]
        index, convert = self._layout[column]
        if convert is None:
            return self._row[index]
        if self._made is None:
            self._made = {}
        if column not in self._made:  # it is converted once, so that a mutable value stays one object
            try:
                self._made[column] = convert(self._row[index])
            except Exception as error:
                raise Unreadable(self.key, column, str(error)) from error
        return self._made[column]

    def shown(self, column: str) -> Any:
        """The value of a column; if it cannot be read, the reason as text."""
        try:
            return self[column]
        except Unreadable as error:
            return error.text

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout or self._row)

    def __len__(self) -> int:
        return len(self._layout or self._row)

    __eq__ = object.__eq__  # that of a Mapping compares values
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Job {self.key!r}>"


def entry_of(job: Job) -> Mapping[str, Any]:
    """The columns of an outcome, such as the attempts: in the row of the job, or in its entry in the side-car."""
    return job if job._entry is None else job._entry


def with_entry(job: Job, entry: Mapping[str, Any]) -> Job:
    """The job, with the columns of its entry in the side-car."""
    job._entry = entry
    return job


def key_of(row: Any) -> Any:
    """The key in a row of key columns."""
    return row[0] if len(row) == 1 else tuple(row)


def values_of(key: Any) -> Sequence[Any]:
    """The values of a key's columns: the other way round."""
    return key if isinstance(key, tuple) else (key,)
