"""Modules of handlers that do not come to their end while they are imported. HANGS says where, and how hard."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

from claimjobs import Job

if (multiprocessing.parent_process() is None) == ("in the command" in os.environ["HANGS"]):
    Path(os.environ["GATE"]).touch()
    while True:
        try:
            time.sleep(60)
        except BaseException:
            if "hard" not in os.environ["HANGS"]:
                raise


def note(job: Job) -> None:
    """Never called."""
