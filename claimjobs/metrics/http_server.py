"""HttpServer: serves a few pages of text to monitoring, from threads of its own."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from claimjobs.errors import ClaimjobsError
from claimjobs.log_events import REQUEST_FAILED

TIME_LIMIT: Final = 5.0
"""Seconds that a client may take to send its request, and to accept a part of the answer."""
LOOPBACK: Final = "127.0.0.1"

log = logging.getLogger("claimjobs.http_server")


@dataclass(frozen=True)
class Answer:
    """What a page says."""

    text: str
    code: int = 200
    type: str = "text/plain; charset=utf-8"


class Page(ABC):
    """A page. Each request asks it for an answer, in a thread of the server."""

    path: str

    @abstractmethod
    def answer(self) -> Answer:
        """The page now."""


class HttpServer:
    """A context manager: the port is taken at once, and pages are served while its block lasts.

    A client that hangs occupies a thread for TIME_LIMIT, and nothing else.
    """

    def __init__(self, host: str, port: int, pages: Sequence[Page]) -> None:
        """Raises ClaimjobsError if the port cannot be used. Port 0: any free port, see `port`."""
        try:
            self._server = _Server(host, port, {page.path: page for page in pages})
        except (OSError, OverflowError) as error:
            says = f"port {port} of {host} cannot be listened on ({error}): choose another port or address"
            raise ClaimjobsError(says) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True)

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # the end of a run waits for no client

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind, without the look-up of the machine's own name that HTTPServer adds: that may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note an error, such as of a client that left. The base class prints a traceback."""
        fields = {"event": REQUEST_FAILED, "client": str(client_address[0])}
        log.debug("a request of %s failed", client_address, exc_info=True, extra=fields)


class _Handler(BaseHTTPRequestHandler):
    timeout = TIME_LIMIT
    server: _Server

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        known = ", ".join(sorted(self.server.pages))
        self._send(Answer(f"there is no such page: {known}\n", 404) if page is None else page.answer())

    def _send(self, answer: Answer) -> None:
        body = answer.text.encode()
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named as in the base class
        """Log no request: monitoring sends one every few seconds."""
