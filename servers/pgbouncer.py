"""A PgBouncer in front of a Postgres: the one that is installed, else the distribution's package."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
ENCRYPTED = """
client_tls_sslmode = require
client_tls_cert_file = {folder}/server.pem
client_tls_key_file = {folder}/server.key
"""


@contextmanager
def pgbouncer(url: str, mode: Mode, size: int = 4, tls: Tls | None = None) -> Iterator[str]:
    """A URL that leads to the same database through a pooler with so many sessions. Raises Unavailable.

    With `tls` it refuses connections that are not encrypted.
    """
    target = sa.make_url(url)
    program, port = _PROGRAM.fetch(), free_port()
    process = Process("pgbouncer", SIGINT)
    try:
        for name, content in (tls.files() if tls else {}).items():
            process.write(name, content)
        text = SETTINGS.format(url=target, port=port, mode=mode, size=size)
        text += ENCRYPTED.format(folder=process.folder) if tls else ""
        process.start(Command([*program.command(), str(process.write("pgbouncer.ini", text))]))
        through = target.set(host="127.0.0.1", port=port)
        _wait(process, port)
        yield through.render_as_string(hide_password=False)
    finally:
        process.close()


def version() -> str:
    """The first line of what the program says of itself."""
    return _PROGRAM.fetch().version_line().splitlines()[0]


def _wait(process: Process, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.exit_code() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(POLL_SECONDS)
    raise Unavailable(f"PgBouncer does not answer. {process.log_tail()}")
