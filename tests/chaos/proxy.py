"""A TCP proxy that cuts, stalls, and swallows without a word."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Final, Self

RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER for 0 seconds: closing sends RST."""


class Link:
    """One client's way to the server, and back."""

    def __init__(self, client: socket.socket, server: socket.socket | None, flows: threading.Event) -> None:
        self._ends = [end for end in (client, server) if end is not None]
        self._flows = flows
        self.swallowed = server is None
        """Nothing passes any more, and nobody is told."""
        if server is not None:
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                if self.swallowed:
                    return
                target.sendall(data)
        if not self.swallowed:
            self.close()

    def close(self) -> None:
        """In order."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def reset(self) -> None:
        """At once, to both ends."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RD)
            end.close()


class Proxy:
    """Listens at `port`, and passes on to a server. Leave the block, and every connection is closed."""

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1") -> None:
        self._target = target
        self._listener = socket.create_server((host, 0))
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._links: list[Link] = []
        self._guard = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._swallows = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self._flows.set()
        self._each(Link.close)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._link, args=(client,), daemon=True).start()

    def _link(self, client: socket.socket) -> None:
        server = None
        try:
            if not self._swallows:
                server = socket.create_connection(self._target, timeout=5)
                server.settimeout(None)
        except OSError:  # no server: so it looks to the client as well
            client.close()
            return
        with self._guard:
            link = Link(client, server, self._flows)
            link.swallowed = link.swallowed or self._swallows  # `swallow` was called during the connect
            self._links.append(link)

    def _each(self, act: object) -> None:
        with self._guard:
            links, self._links = self._links, []
        for link in links:
            act(link)  # type: ignore[operator]

    # --- faults ----------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every connection."""
        self._each(Link.reset)

    def stall(self) -> None:
        """Pass nothing on, until `flow`."""
        self._flows.clear()

    def flow(self) -> None:
        """Pass everything on that has come meanwhile."""
        self._flows.set()

    def swallow(self) -> None:
        """Accept, pass nothing on, never close: the connections there are, and those that come until `spit`."""
        self._swallows = True
        with self._guard:
            for link in self._links:
                link.swallowed = True

    def spit(self) -> None:
        """New connections pass again. Those that were swallowed never will."""
        self._swallows = False

    def forget_swallowed(self) -> None:
        """Close those, as a server does in the end."""
        with self._guard:
            swallowed = [link for link in self._links if link.swallowed]
            self._links = [link for link in self._links if not link.swallowed]
        for link in swallowed:
            link.close()
