"""For a transaction that is tried again: rows are kept in memory, and each bad row is reported once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from claimjobs.enqueue.bulk_insert import Row
from claimjobs.enqueue.insert import OnBad
from claimjobs.errors import BadRow


class RepeatableRows:
    """Rows that can be iterated over several times, even if their source gives them only once."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rest = iter(rows)
        self._seen: list[Row] = []
        self.broken = False
        """Whether the source raised an error. The rows after it are unknown."""

    def __iter__(self) -> Iterator[Row]:
        yield from self._seen
        try:
            for row in self._rest:
                self._seen.append(row)
                yield row
        except Exception:
            self.broken = True
            raise


class ReportOnce:
    """Calls `on_bad` once for each bad row, however often the row is tried."""

    def __init__(self, on_bad: OnBad) -> None:
        self._on_bad = on_bad
        self._lines: set[int] = set()

    def report(self, bad: BadRow) -> None:
        """Call `on_bad`, unless it was called for this row."""
        if bad.line not in self._lines:
            self._lines.add(bad.line)
            self._on_bad(bad)
