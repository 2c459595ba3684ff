"""Standard streams: some are closed, full, or cannot hold every character."""

from __future__ import annotations

import contextlib
import os
import sys

NAMES = ("stdin", "stdout", "stderr")


def prepare() -> None:
    """Open closed standard streams, and let no text fail because of its characters.

    Otherwise a file or a connection that is opened later would get the number of a closed stream.
    """
    for number, name in enumerate(NAMES):
        if getattr(sys, name) is None:
            # Standard input is opened for writing: to read it is an error then, instead of an empty file.
            setattr(sys, name, os.fdopen(_nothing(number), "w" if number else "r", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _nothing(number: int) -> int:
    opened = os.open(os.devnull, os.O_WRONLY)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    return number


def give_up_output() -> None:
    """Discard what cannot be written: otherwise Python tries again at its end, and fails."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
