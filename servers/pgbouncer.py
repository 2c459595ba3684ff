"""A PgBouncer in front of a Postgres: the one that is installed, else the distribution's package."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from signal import SIGINT
from typing import Literal

import sqlalchemy as sa

from servers.binaries import packaged
from servers.binaries.recipe import Tls
from servers.errors import Unavailable
from servers.process import Command, Process
from servers.programs import START_SECONDS, free_port
from servers.server import POLL_SECONDS

Mode = Literal["session", "transaction", "statement"]

_PROGRAM = packaged.Server(
    name="pgbouncer", program="pgbouncer", package="pgbouncer", is_right=re.compile("PgBouncer", re.IGNORECASE)
)
_PREPARING = packaged.Server(
    name="pgbouncer-preparing",
    program="pgbouncer",
    package="pgbouncer",
    is_right=re.compile(r"PgBouncer 1\.(2[1-9]|[3-9]\d)", re.IGNORECASE),
)
"""Of version 1.21 or later, which knows prepared statements."""
SETTINGS = """
[databases]
* = host={url.host} port={url.port} user={url.username} password={url.password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
"""
PREPARED = """
max_prepared_statements = {prepared}
"""
ENCRYPTED = """
client_tls_sslmode = require
client_tls_cert_file = {folder}/server.pem
client_tls_key_file = {folder}/server.key
"""


@dataclass(frozen=True)
class PgBouncer:
    """A pooler that runs, and may be killed."""

    url: str
    """It leads to the same database through the pooler."""
    _process: Process
    _command: Command
    _port: int

    def start(self) -> None:
        """Start it; return when it answers. Raises Unavailable."""
        self._process.start(self._command)
        deadline = time.monotonic() + START_SECONDS
        while self._process.exit_code() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(POLL_SECONDS)
        raise Unavailable(f"PgBouncer does not answer. {self._process.log_tail()}")

    def kill(self) -> None:
        """SIGKILL: its clients and the server's sessions lose their connections."""
        self._process.kill()


@contextmanager
def pgbouncer(
    url: str, mode: Mode, size: int = 4, *, tls: Tls | None = None, prepared: int | None = None
) -> Iterator[PgBouncer]:
    """A pooler with so many sessions. Raises Unavailable.

    `tls`: it refuses connections that are not encrypted. `prepared`: its `max_prepared_statements`; then it is of
    version 1.21 or later.
    """
    target = sa.make_url(url)
    program, port = (_PROGRAM if prepared is None else _PREPARING).fetch(), free_port()
    process = Process("pgbouncer", SIGINT)
    try:
        for name, content in (tls.files() if tls else {}).items():
            process.write(name, content)
        text = SETTINGS.format(url=target, port=port, mode=mode, size=size)
        text += ENCRYPTED.format(folder=process.folder) if tls else ""
        text += "" if prepared is None else PREPARED.format(prepared=prepared)
        command = Command([*program.command(), str(process.write("pgbouncer.ini", text))])
        through = target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        pooler = PgBouncer(through, process, command, port)
        pooler.start()
        yield pooler
    finally:
        process.close()


def version() -> str:
    """The first line of what the program that knows prepared statements says of itself."""
    return _PREPARING.fetch().version_line().splitlines()[0]
