"""A server on a disk of its own, that is full for a while."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import servers
from tests.chaos.arena import Arena, own_server
from tests.chaos.faults.fault import NotHere
from tests.chaos.fleet import until

MEGABYTES: Final = {"postgres": 256, "mysql": 640, "mariadb": 512}
"""Enough for an empty server and some minutes of work."""
BALLAST: Final = "ballast"
STANDSTILL_SECONDS: Final = 1.5
"""Without one execution: nothing can be written any more."""
ANSWER_SECONDS: Final = 90.0
"""MySQL looks once a minute whether there is space again."""


@contextlib.contextmanager
def on_a_small_disk(arena: Arena) -> Iterator[Arena]:
    """Another server, all of whose files are on a small file system in memory."""
    with _mounted(MEGABYTES[arena.server.backend]) as disk:
        with _temporary_files_in(disk):
            server = own_server(arena.server.backend)
        with server:
            if not any(disk.iterdir()):
                raise NotHere("the data of a server in a container are not where a small disk could be put")
            small = Arena(server, arena.random, arena.folder, arena.kind)
            small.disk = disk
            yield small


@contextlib.contextmanager
def _mounted(megabytes: int) -> Iterator[Path]:
    if os.geteuid() != 0:
        raise NotHere("mounting a small disk needs root")
    disk = Path(tempfile.gettempdir(), f"cj-disk-{secrets.token_hex(3)}")
    disk.mkdir()
    try:
        options = f"size={megabytes}m,mode=1777"
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "cj-disk", disk], check=False, capture_output=True, text=True
        )
        if made.returncode:
            raise NotHere(f"no small disk: {made.stderr.strip()}")
        try:
            yield disk
        finally:
            _unmount(disk)
    finally:
        disk.rmdir()


def _unmount(disk: Path) -> None:
    """The last of the server may still be closing its files."""
    deadline = time.monotonic() + 10
    while subprocess.run(["umount", disk], check=False, capture_output=True).returncode:
        if time.monotonic() > deadline:
            subprocess.run(["umount", "--lazy", disk], check=False)
            return
        time.sleep(0.1)


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


def fill(arena: Arena) -> None:
    """Not a byte is left until all work stands still; then there is space, and a server that gave up is started."""
    ballast, began = arena.the_disk / BALLAST, time.time()
    until(partial(_stands_still, arena, ballast), "work stands still while the disk is full")
    arena.pause(1.0, 2.0)
    ballast.unlink()
    freed = time.time()
    gave_up = _see_that_it_writes(arena)
    if arena.queue.exactly_once:  # a settle is not tried again, so that each batch of this time may be rolled back
        arena.endanger(_runs_since(arena, began))
    arena.hit_everyone(at=None if gave_up else freed)


def _runs_since(arena: Arena, at: float) -> int:
    found: list[int] = []

    def look() -> bool:
        found[:] = [row[0] for row in arena.ask("SELECT count(*) FROM chaos_runs WHERE at > :since", since=at)]
        return bool(found)

    until(look, "the server answers")
    return found[0]


def _stands_still(arena: Arena, ballast: Path) -> bool:
    _take_what_is_free(ballast)
    if arena.server.backend == "postgres":  # it has files of WAL in store: on a slow machine they last for minutes
        arena.do("SELECT pg_switch_wal()")
    last = arena.ask("SELECT max(at) FROM chaos_runs")
    return not last or last[0][0] is None or time.time() - last[0][0] > STANDSTILL_SECONDS


def _take_what_is_free(ballast: Path) -> None:
    """In halves: the server takes some meanwhile, and must not get the rest, which its recovery needs afterwards."""
    with ballast.open("ab") as file, contextlib.suppress(OSError):
        while free := os.statvfs(ballast).f_bavail:
            taken = os.fstat(file.fileno()).st_size
            os.posix_fallocate(file.fileno(), taken, -(-free // 2) * os.statvfs(ballast).f_frsize)


def _see_that_it_writes(arena: Arena) -> bool:
    """Wait until it does; whether it had to be started again."""
    deadline = time.monotonic() + ANSWER_SECONDS
    gave_up = False
    while not arena.do("INSERT INTO chaos_deaths (owner, at) VALUES (0, 0)") and time.monotonic() < deadline:
        time.sleep(0.5)  # it may be starting again of itself
        if not arena.ask("SELECT 1"):
            gave_up = True
            with contextlib.suppress(servers.Unavailable):
                arena.server.restart()
    return gave_up
