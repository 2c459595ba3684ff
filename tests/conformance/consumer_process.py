"""A consumer in another process, to be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import claimjobs
from tests.backends import Backend

HERE = str(Path(claimjobs.__file__).parents[1])
CLAIMS_AND_WAITS = """
import sys
from claimjobs import Queue
from claimjobs.options import Liveness
queue = Queue({url!r}, liveness=Liveness(lease=60))
batch = queue.claim({size})
print(queue.owner_id, len(batch), flush=True)
sys.stdin.read()
"""


@contextmanager
def consumer(backend: Backend, size: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process with `size` jobs in hand, and its owner id."""
    program = CLAIMS_AND_WAITS.format(url=backend.url, size=size)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE
    ) as process:
        try:
            assert process.stdout is not None
            owner_id, held = process.stdout.readline().split()
            assert int(held) == size
            yield process, int(owner_id)
        finally:
            process.kill()
