"""The file to which lines that do not fit are copied."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import click


class Rejects:
    """Copies lines unchanged, after their header, so that the file can be corrected and enqueued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0
        """Rows that were rejected."""

    def __enter__(self) -> Self:
        """Create the file. Raises UsageError if it exists: it may have lines that were rejected before."""
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
        """Copy the lines of a row."""
        for part in (header, raw) if self.count == 0 else (raw,):
            self._file.write(part if part.endswith(b"\n") or not part else part + b"\n")
        self.count += 1
