"""What a pooler looks like from a client: the session that answers is not the one whose number was in the greeting."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

MYSQL_GREETING = 10
"""The protocol's version, the fifth byte of the first packet; then a text that ends in NUL, and the number."""
POSTGRES_KEY = b"K\x00\x00\x00\x0c"
"""The message that holds the number."""


@contextmanager
def pooler(url: str) -> Iterator[str]:
    """A URL that leads to the same server, which greets with another session's number."""
    target = sa.make_url(url)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, (target.host, target.port)), daemon=True).start()
        host, port = listening.getsockname()
        yield target.set(host=host, port=port).render_as_string(hide_password=False)
        listening.shutdown(socket.SHUT_RDWR)  # wakes the thread


def _accept(listening: socket.socket, target: tuple[str, int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            server = socket.create_connection(target)
            for come, go, lies in ((client, server, False), (server, client, True)):
                threading.Thread(target=_pump, args=(come, go, lies), daemon=True).start()


def _pump(come: socket.socket, go: socket.socket, lies: bool) -> None:
    with contextlib.suppress(OSError), come, go:
        while chunk := come.recv(65_536):
            changed = _lie(chunk) if lies else chunk
            lies = lies and changed == chunk
            go.sendall(changed)
        go.shutdown(socket.SHUT_RDWR)


def _lie(chunk: bytes) -> bytes:
    """With another number, if this is the part of a greeting that has one."""
    if chunk[4:5] == bytes([MYSQL_GREETING]):
        place = chunk.index(b"\0", 5) + 1
    elif POSTGRES_KEY in chunk:
        place = chunk.index(POSTGRES_KEY) + len(POSTGRES_KEY)
    else:
        return chunk
    return chunk[:place] + bytes(255 - byte for byte in chunk[place : place + 4]) + chunk[place + 4 :]
