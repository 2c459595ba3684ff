"""A handler for the tests of what is promised: it hangs once."""

from __future__ import annotations

import contextlib
import os
import time

from claimjobs import Batch


def once(batch: Batch) -> None:
    """The first process to get here hangs for good; all others do their jobs."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(os.environ["GATE"], os.O_CREAT | os.O_EXCL))
        while True:
            time.sleep(60)
    batch.done()
