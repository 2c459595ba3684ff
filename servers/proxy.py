"""A TCP proxy between a client and a server: counts round trips, makes them longer, lets a line go dead."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Self

import sqlalchemy as sa


class Proxy:
    """Forwards connections to the server of a URL, each in a thread, until it is left.

    What a client says arrives `delay` seconds later, what the server answers at once. All that a client says before
    the server answers is one round trip, however many packets it is. What a client says after the last answer, and
    waits for no other, is none: a driver may ask the server to send what it has just sent by itself.

    A line that is `stall()`ed stays open on both sides and carries nothing more, as when a cable is pulled;
    connections that are made afterwards work.
    """

    def __init__(self, url: str, delay: float = 0.0) -> None:
        self._target = sa.make_url(url)
        self._delay = delay
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lines: list[_Line] = []
        self._accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        """The URL of the database through this proxy."""
        host, port = self._listening.getsockname()
        return self._target.set(host=host, port=port).render_as_string(hide_password=False)

    @property
    def round_trips(self) -> int:
        """How often a client has said something and its server has answered, on all lines."""
        return sum(len(line.trips) for line in self._lines)

    def round_trips_between(self, began: float, ended: float) -> int:
        """How many of them began between two moments of the monotonic clock."""
        return sum(began <= at <= ended for line in self._lines for at in line.trips)

    def stall(self) -> None:
        """All lines that there are carry nothing more."""
        for line in self._lines:
            line.stalled.set()

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Wakes the thread that waits in accept(); closing alone does not.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join(10)
        for line in self._lines:
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection((self._target.host or "127.0.0.1", self._target.port or 0))
            line = _Line(client, server, self._delay)
            # Known before it carries anything: who has had an answer can count and stall the line.
            self._lines.append(line)
            line.start()


class _Line:
    def __init__(self, client: socket.socket, server: socket.socket, delay: float) -> None:
        self.stalled = threading.Event()
        self.trips: list[float] = []
        """When each round trip began."""
        self._delay = delay
        self._client, self._server = client, server
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread = threading.Thread(target=self._forward, name="proxied line", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        for end in (self._client, self._server):
            end.close()

    def _forward(self) -> None:
        with selectors.DefaultSelector() as ready, contextlib.suppress(OSError):
            ready.register(self._client, selectors.EVENT_READ, self._server)
            ready.register(self._server, selectors.EVENT_READ, self._client)
            began: float | None = None
            """When the client began to say what the server has not answered yet."""
            while not self.stalled.is_set() and ready.get_map():
                for key, _ in ready.select():
                    source: socket.socket = key.fileobj  # type: ignore[assignment]  # as it was registered
                    said = source.recv(65_536)
                    if self.stalled.is_set():
                        return  # what came last is lost; both ends stay open
                    if not said:
                        key.data.shutdown(socket.SHUT_WR)
                        ready.unregister(source)
                        continue
                    if source is self._client and began is None:
                        began = time.monotonic()
                        time.sleep(self._delay)
                    elif source is self._server and began is not None:
                        self.trips.append(began)  # before the client has the answer, and counts
                        began = None
                    key.data.sendall(said)
