"""A line to a server that takes longer, and counts how often the client waits for an answer."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Self

import sqlalchemy as sa


class DelayingProxy:
    """Forwards connections; what a client says arrives `seconds` later, what the server answers at once.

    All that a client says before the server answers is one trip, however many packets it is.
    """

    def __init__(self, url: str, seconds: float) -> None:
        self._target = sa.make_url(url)
        self._seconds = seconds
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._trips: list[float] = []
        self._accepting = threading.Thread(target=self._accept, name="delaying proxy", daemon=True)

    @property
    def url(self) -> str:
        """The same database, through this proxy."""
        host, port = self._listening.getsockname()
        return self._target.set(host=host, port=port).render_as_string(hide_password=False)

    def trips(self, began: float, ended: float) -> int:
        """How many there were between two moments of the monotonic clock."""
        return sum(began <= at <= ended for at in self._trips)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept(); closing does not
        self._listening.close()
        self._accepting.join()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection((self._target.host or "127.0.0.1", self._target.port or 0))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open += [client, server]
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        answered = True
        with selectors.DefaultSelector() as ready, contextlib.suppress(OSError, ValueError):
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in ready.select():
                    source: socket.socket = key.fileobj  # type: ignore[assignment]  # as it was registered
                    if not (said := source.recv(65_536)):
                        key.data.shutdown(socket.SHUT_WR)
                        return
                    if source is client and answered:
                        self._trips.append(time.monotonic())
                        time.sleep(self._seconds)
                    answered = source is server
                    key.data.sendall(said)
