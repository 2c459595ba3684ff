"""Producer: inserts jobs, at a rate that the suite or the adapter keeps, or so that the queue keeps its depth."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterator

from benchmarks.adapters.measures import Measures
from benchmarks.adapters.settings import Settings
from claimjobs import Queue

LOOK_SECONDS = 0.1
"""How often a producer that waits for the suite looks whether it is to stop."""


def produce(queue: Queue, settings: Settings, measures: Measures, stopped: threading.Event) -> None:
    """Insert jobs until `stopped` is set."""
    body = "x" * settings.payload_bytes
    for size in _sizes(queue, settings, stopped):
        if stopped.is_set():
            return
        queue.enqueue({"sent_at": time.time(), "body": body} for _ in range(size))
        measures.add_enqueued(size)


def _sizes(queue: Queue, settings: Settings, stopped: threading.Event) -> Iterator[int]:
    """How many jobs to insert now, again and again."""
    if settings.producer_mode == "depth-target":
        return _missing(queue, settings, stopped)
    if settings.pacing == "harness":
        return _ordered(sys.stdin.fileno(), stopped)
    return _at_rate(settings, stopped)


def _at_rate(settings: Settings, stopped: threading.Event) -> Iterator[int]:
    """By the time that has passed: a late insert is followed by a larger one."""
    owed, last = 0.0, time.monotonic()
    while not stopped.wait(0 if owed >= 1 else settings.insert_seconds):
        now = time.monotonic()
        owed += rate(settings) * (now - last)
        last = now
        size = min(int(owed), settings.insert_size)
        if size:
            owed -= size
            yield size


def _ordered(stdin: int, stopped: threading.Event) -> Iterator[int]:
    """By the lines `ENQUEUE n` of the suite, until it closes the pipe."""
    rest = b""
    while not stopped.is_set():
        if not select.select([stdin], [], [], LOOK_SECONDS)[0]:
            continue
        received = os.read(stdin, 1 << 16)
        if not received:
            return
        *lines, rest = (rest + received).split(b"\n")
        yield from (int(line.split()[1]) for line in lines if line.startswith(b"ENQUEUE "))


def _missing(queue: Queue, settings: Settings, stopped: threading.Event) -> Iterator[int]:
    """What the queue lacks to its depth."""
    while not stopped.wait(settings.insert_seconds):
        waiting = queue.backlog(limit=settings.target_depth).unclaimed
        if size := min(settings.target_depth - waiting, settings.insert_size):
            yield size


def rate(settings: Settings) -> float:
    """Jobs a second that are to be inserted at the moment."""
    if settings.producer_mode == "depth-target":
        return 0.0
    if settings.rate_file is None:
        return settings.rate
    try:
        return float(settings.rate_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it is being written at this moment
        return settings.rate
