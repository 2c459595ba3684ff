"""Serves a few pages of text to monitoring, each a WSGI application, from threads of its own."""

from __future__ import annotations

import io
import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from claimjobs.errors import ClaimjobsError
from claimjobs.log_events import REQUEST_FAILED

REQUEST_SECONDS: Final = 5.0
"""Seconds that a client may take to send its request, and to accept a part of the answer."""
POLICY: Final = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""A browser runs nothing of a page, and loads nothing but its style from here, whatever the jobs say."""
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)

log = logging.getLogger("claimjobs.http_server")


@contextmanager
def serving(host: str, port: int, pages: Mapping[str, WSGIApplication]) -> Iterator[str]:
    """Serve these pages, by their paths, while the block lasts; yield their URL, without a path. Port 0: any free port.

    A client that hangs occupies a thread for REQUEST_SECONDS, and nothing else. Raises ClaimjobsError if the port
    cannot be used.
    """
    try:
        server = _Server(host, port, pages)
    except (OSError, OverflowError) as error:
        says = f"port {port} of {host} cannot be listened on ({error}): choose another port or address"
        raise ClaimjobsError(says) from error
    with server:
        threading.Thread(target=server.serve_forever, args=(0.1,), name="http", daemon=True).start()
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}"
        finally:
            server.shutdown()


def answer(start: StartResponse, text: str, status: str = "200 OK", *, kind: str = "text/plain") -> list[bytes]:
    """The answer of a WSGI application that says this text."""
    start(status, [("Content-Type", f"{kind}; charset=utf-8"), *HEADERS])
    return [text.encode()]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False  # the end of a run waits for no client

    def __init__(self, host: str, port: int, pages: Mapping[str, WSGIApplication]) -> None:
        self._pages = pages
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.set_app(self._answer)

    def server_bind(self) -> None:
        """Bind, without the look-up of the machine's own name that HTTPServer adds: that may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Any:
        page = self._pages.get(environ["PATH_INFO"])
        if page is None:
            return answer(start, f"there is no such page: {', '.join(sorted(self._pages))}\n", "404 Not Found")
        return page(environ, start)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note an error, such as of a client that sends nothing. The base class prints a traceback."""
        fields = {"event": REQUEST_FAILED, "client": str(client_address[0])}
        log.debug("a request of %s failed", client_address, exc_info=True, extra=fields)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def handle(self) -> None:
        self._errors = io.StringIO()
        super().handle()
        if errors := self._errors.getvalue():
            raise RuntimeError(errors)  # for `handle_error`

    def get_stderr(self) -> io.StringIO:
        """Where wsgiref prints the traceback of a page, and of a client that does not accept its answer."""
        return self._errors

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named as in the base class
        """Log no request: monitoring sends one every few seconds."""
