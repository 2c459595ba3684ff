"""A handler whose module can be imported by the command, and by no consumer."""

from __future__ import annotations

import multiprocessing

from tests.process.work import note_job

if multiprocessing.parent_process() is not None:
    raise RuntimeError("not here")

__all__ = ["note_job"]
