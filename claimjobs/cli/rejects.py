"""The file that lines are copied to which do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import click


class Rejects:
    """Lines as they stood, under the header they stood under, to be corrected and enqueued like any file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0
        """Rows that were rejected."""

    def __enter__(self) -> Self:
        """Make the file. Raises UsageError if it is there: it may hold what was rejected before."""
        try:
            self._file = self._path.open("xb")
        except FileExistsError:
            raise click.UsageError(f"{self._path} is there already: give --rejects a new name") from None
        except OSError as error:
            raise click.UsageError(f"{self._path} cannot be written ({error.strerror})") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self.count:
            self._path.unlink(missing_ok=True)

    def add(self, header: bytes, raw: bytes) -> None:
        """Copy the lines of a row, verbatim."""
        for part in (header, raw) if self.count == 0 else (raw,):
            self._file.write(part if part.endswith(b"\n") or not part else part + b"\n")
        self.count += 1
