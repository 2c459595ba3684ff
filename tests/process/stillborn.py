"""A handler whose consumers die before they are ready: the module can be had by the command alone."""

from __future__ import annotations

import multiprocessing
import os

from claimjobs import Batch

if multiprocessing.parent_process() is not None:
    os._exit(1)


def handle(batch: Batch) -> None:
    """Never called."""
    batch.done()
