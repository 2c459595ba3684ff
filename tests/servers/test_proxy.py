"""The proxy: what it counts, how it delays, and a line that goes dead."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from servers.proxy import Proxy
from tests.backends import Backend, wait_for

ASK = b"?" * 10


class Echo:
    """A server that answers with what it has heard, as soon as that are ten bytes."""

    def __init__(self) -> None:
        self.heard = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="echo")

    def __enter__(self) -> Echo:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(120)

    @property
    def url(self) -> str:
        host, port = self._listening.getsockname()
        return f"postgresql://{host}:{port}/echo"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                threading.Thread(target=self._repeat, args=[line], daemon=True).start()

    def _repeat(self, line: socket.socket) -> None:
        with line:
            pending = b""
            while said := line.recv(len(ASK)):
                self.heard += len(said)
                pending += said
                if len(pending) >= len(ASK):
                    line.sendall(pending)
                    pending = b""


@contextmanager
def client(proxy: Proxy) -> Iterator[socket.socket]:
    at = sa.make_url(proxy.url)
    with socket.create_connection((at.host or "", at.port or 0)) as line:
        line.settimeout(10)
        yield line


def ask(line: socket.socket) -> bytes:
    line.sendall(ASK)
    return line.recv(len(ASK), socket.MSG_WAITALL)


def test_what_is_said_before_the_answer_is_one_round_trip() -> None:
    with Echo() as echo, Proxy(echo.url) as proxy, client(proxy) as line:
        for count in range(1, len(ASK)):
            line.sendall(ASK[:1])
            wait_for(lambda count=count: echo.heard == count, "each byte arrives by itself")  # type: ignore[misc]
        line.sendall(ASK[:1])
        assert line.recv(len(ASK), socket.MSG_WAITALL) == ASK
        assert proxy.round_trips == 1
        between = time.monotonic()
        assert ask(line) == ask(line) == ASK
        assert proxy.round_trips == 3
        assert proxy.round_trips_between(0, between) == 1
        assert proxy.round_trips_between(between, time.monotonic()) == 2


def test_what_is_said_after_the_answer_and_not_answered_is_no_round_trip() -> None:
    with Echo() as echo, Proxy(echo.url) as proxy, client(proxy) as line:
        assert ask(line) == ASK
        line.sendall(ASK[:1])
        wait_for(lambda: echo.heard == len(ASK) + 1, "it arrives")
        assert proxy.round_trips == 1
        line.sendall(ASK[1:])
        assert line.recv(len(ASK), socket.MSG_WAITALL) == ASK
        assert proxy.round_trips == 2


def test_a_round_trip_takes_the_delay_longer() -> None:
    with Echo() as echo, Proxy(echo.url, 0.05) as proxy, client(proxy) as line:
        began = time.monotonic()
        assert ask(line) == ask(line) == ASK
        assert time.monotonic() - began >= 0.1


def test_a_line_that_was_stalled_carries_nothing_and_a_new_one_does() -> None:
    with Echo() as echo, Proxy(echo.url) as proxy, client(proxy) as old:
        assert ask(old) == ASK
        proxy.stall()
        old.sendall(ASK)
        old.settimeout(0.1)
        with pytest.raises(TimeoutError):
            old.recv(1)
        assert echo.heard == len(ASK)
        with client(proxy) as new:
            assert ask(new) == ASK


def test_an_end_is_passed_on() -> None:
    with Echo() as echo, Proxy(echo.url) as proxy, client(proxy) as line:
        assert ask(line) == ASK
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""
        assert proxy.round_trips == 1


def test_a_database_is_the_same_through_it(database: Backend) -> None:
    with Proxy(database.url) as proxy:
        database.make("jobs")
        queue = Queue(proxy.url)
        queue.check()
        queue.engine.dispose()
        assert proxy.round_trips > 0
