"""A TCP proxy for tests: between a queue and its server, to cut lines and to let them go dead."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

import sqlalchemy as sa


class Proxy:
    """Forwards connections to the server of a URL, each in a thread, until it is left.

    A line that is `stall()`ed stays open on both sides and carries nothing more, as when a cable is pulled;
    connections that are made afterwards work.
    """

    def __init__(self, url: str) -> None:
        self._target = sa.make_url(url)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lines: list[_Line] = []
        self._accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        """The same database, through this proxy."""
        host, port = self._listening.getsockname()
        return self._target.set(host=host, port=port).render_as_string(hide_password=False)

    @property
    def round_trips(self) -> int:
        """How often a client has said something and then waited for its server's answer, on all lines."""
        return sum(line.round_trips for line in self._lines)

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
            self._lines.append(_Line(client, server))


class _Line:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.stalled = threading.Event()
        self.round_trips = 0
        self._ends = (client, server)
        self._thread = threading.Thread(target=self._forward, name="proxied line", daemon=True)
        self._thread.start()

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        for end in self._ends:
            end.close()

    def _forward(self) -> None:
        client, server = self._ends
        with selectors.DefaultSelector() as ready, contextlib.suppress(OSError):
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            speaks: object = server
            while not self.stalled.is_set():
                for key, _ in ready.select():
                    said = key.fileobj.recv(65_536)  # type: ignore[union-attr]
                    self.round_trips += key.fileobj is client and speaks is not client
                    speaks = key.fileobj
                    if self.stalled.is_set():
                        return  # what came last is lost; both ends stay open
                    if not said:
                        key.data.shutdown(socket.SHUT_WR)
                        ready.unregister(key.fileobj)
                        if not ready.get_map():
                            return
                    else:
                        key.data.sendall(said)
