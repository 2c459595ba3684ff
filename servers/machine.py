"""A machine on which servers of our own run: this one, or a host of a network."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from servers.backends import NAME, Backend, url
from servers.process import Process
from servers.programs import RECIPES, ProgramServer

HBA: Final = """
local all all scram-sha-256
host all all all scram-sha-256
host replication all all scram-sha-256
"""


class Machine:
    """An address, and how a program is started there."""

    address = "127.0.0.1"

    @property
    def prefix(self) -> list[str]:
        """What a command begins with that is to run here."""
        return []

    @contextmanager
    def serve(
        self, backend: Backend, *, password: str | None = None, options: Sequence[str] = ()
    ) -> Iterator[HostServer]:
        """A server on this machine. Raises Unavailable."""
        RECIPES[backend].fetch()
        with self.process(backend) as process:
            server = HostServer(self, backend, process, password=password, options=options)
            server.begin()
            yield server

    @contextmanager
    def process(self, backend: Backend) -> Iterator[Process]:
        """For a server on this machine. It is closed at the end."""
        process = Process(backend, RECIPES[backend].STOP, self.prefix)
        try:
            yield process
        finally:
            process.close()


THIS_MACHINE: Final = Machine()


class HostServer(ProgramServer):
    """A server that answers at the address of a machine. `url` is for this one, and leads through its Unix socket."""

    def __init__(
        self, machine: Machine, backend: Backend, process: Process, *, password: str | None, options: Sequence[str]
    ) -> None:
        postgres = backend == "postgres"
        hba = process.write("pg_hba.conf", HBA) if postgres else None
        listens = ["-c", f"listen_addresses={machine.address}", "-c", f"hba_file={hba}"]
        here = listens if postgres else [f"--bind-address={machine.address}"]
        super().__init__(backend, RECIPES[backend], process, password=password, options=[*here, *options])
        self.network_url = url(backend, machine.address, self._place.port, self._place.password)
        self.url = _through_socket(backend, sa.make_url(self.network_url), process.folder)
        name = f".s.PGSQL.{self._place.port}" if postgres else f"{NAME}.sock"
        self._socket = str(process.folder / name)

    def _ask_version(self) -> str | None:
        with socket.socket(socket.AF_UNIX) as probe:  # a driver does not close the socket of an attempt that fails
            if error := probe.connect_ex(self._socket):
                return os.strerror(error)
        return super()._ask_version()


def _through_socket(backend: Backend, at: sa.URL, folder: Path) -> str:
    if backend == "postgres":
        near = at._replace(host=None, port=None).update_query_dict({"host": str(folder), "port": str(at.port)})
    else:
        near = at.set(host="localhost").update_query_dict({"unix_socket": f"{folder}/{NAME}.sock"})
    return near.render_as_string(hide_password=False)
