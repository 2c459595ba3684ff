"""A Galera cluster: three MariaDB servers of our own, all of which take writes."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from servers import cache, packages
from servers.binaries import mariadb
from servers.machine import THIS_MACHINE, HostServer, Machine
from servers.process import Command, Process
from servers.programs import INITIALISE_SECONDS, START_SECONDS, free_port
from servers.replication import as_one, ask, wait_until
from servers.server import Server

THREE: Final = (THIS_MACHINE, THIS_MACHINE, THIS_MACHINE)
"""The fewest members of which a majority is left when one is killed."""
LIBRARY: Final = "usr/lib/galera/libgalera_smm.so"
STATE: Final = "version: 2.1\nuuid: {history}\nseqno: {place}\nsafe_to_bootstrap: 1\n"
"""What a member says in `grastate.dat`."""
METHOD: Final = "claimjobs"
TRANSFER: Final = """#!/bin/sh
for word; do
  case "$last" in --role) role=$word;; --address) address=$word;; --gtid) position=$word;; esac
  last=$word
done
case "$role" in
  joiner) echo "ready $address"; echo "$POSITION";;
  donor) echo continue; echo "done $position";;
esac
"""
"""The program that MariaDB calls to copy data to a member that joins. It copies none: the member has all that was
committed up to a position, and asks for the rest afterwards."""
RECOVERED: Final = re.compile(r"Recovered position: *(\S+:-?\d+)")


def provider() -> Path:
    """The library that replicates: the one that is installed, else the distribution's. Raises Unavailable."""
    installed = Path("/", LIBRARY)
    return installed if installed.exists() else cache.fill("galera", _unpack) / LIBRARY


def _unpack(into: Path) -> None:
    packages.unpack_data("galera-4", into)


class Member(HostServer):
    """A member of the cluster. When it starts it says how far it has come, and gets the rest from another member."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        *,
        password: str,
        options: Sequence[str],
        name: str,
        founder: Member | None = None,
    ) -> None:
        """`name`: of the cluster's history. `founder`: whose data it begins with. None: it founds the cluster."""
        super().__init__(machine, "mariadb", process, password=password, options=options)
        self._founder, self._position = founder, f"{name}:0"
        self._founds = founder is None

    def initialise(self) -> list[Command]:
        self._process.write(f"wsrep_sst_{METHOD}", TRANSFER).chmod(0o700)
        if self._founder is None:
            return super().initialise()
        self._position = self._founder._position
        return [Command(["cp", "--recursive", str(self._founder.copy), str(self._place.data)])]

    @property
    def copy(self) -> Path:
        """Where the data are from which others begin."""
        return self._process.folder / "copy"

    def found(self) -> None:
        """Begin the cluster, and keep a copy of the data for others."""
        self.begin()
        self.kill()
        self._recover()
        self._process.run(Command(["cp", "--recursive", str(self._place.data), str(self.copy)]), INITIALISE_SECONDS)
        own = [str(self.copy / name) for name in ("gvwstate.dat", "galera.cache")]
        self._process.run(Command(["rm", "--force", *own]), INITIALISE_SECONDS)
        self._serve()
        self._founds = False

    def _recover(self) -> None:
        """After it was killed: read from its data how far it had come."""
        command = self._recipe.serve(self._place)
        read = [*command.arguments, *self._options, "--wsrep-recover"]
        self._process.run(replace(command, arguments=read), INITIALISE_SECONDS)
        self._position = RECOVERED.findall((self._process.folder / "server.log").read_text(errors="replace"))[-1]

    def restart(self) -> None:
        self.kill()
        self._recover()
        self._serve()

    def _serve(self) -> None:
        history, _, place = self._position.partition(":")
        state = self._process.write("grastate.dat", STATE.format(history=history, place=place))
        self._process.run(Command(["cp", str(state), str(self._place.data)]), INITIALISE_SECONDS)
        environment = ["env", f"PATH={self._process.folder}:{os.environ['PATH']}", f"POSITION={self._position}"]
        command = self._recipe.serve(self._place)
        options = [*self._options, f"--wsrep-start-position={self._position}"]
        begins = ["--wsrep-new-cluster"] if self._founds else []
        self.pid = self._process.start(
            replace(command, arguments=[*environment, *command.arguments, *options, *begins])
        )
        self.wait(START_SECONDS, watch=self._must_run)


class Cluster:
    """The members, all of which answer and take writes."""

    def __init__(self, members: Sequence[Server]) -> None:
        self.members = members

    @property
    def together(self) -> Server:
        """All as one server, which is not ours to kill: each of them is."""
        return as_one(self.members)

    @property
    def size(self) -> int:
        """How many members the cluster has, as the first one sees it."""
        return _size(self.members[0])

    def bring_back(self, member: Server) -> None:
        """Let a member that was killed join again."""
        member.restart()
        wait_until(lambda: self.is_back(member), "the member is back")

    def is_back(self, member: Server) -> bool:
        """Whether a member that was killed or cut off takes part again."""
        return _is_ready(member) and self.size == _size(member)


@contextmanager
def galera(machines: Sequence[Machine] = THREE) -> Iterator[Cluster]:
    """A cluster with a member on each machine, all of which take writes. Raises Unavailable."""
    library, password, name = provider(), secrets.token_hex(8), str(uuid.uuid4())
    mariadb.fetch()
    doors = [f"{machine.address}:{free_port()}" for machine in machines]
    with contextlib.ExitStack() as stack:
        members: list[Member] = []
        for machine, door in zip(machines, doors, strict=True):
            process = stack.enter_context(machine.process("mariadb"))
            options, founder = _options(library, machine, door, doors), members[0] if members else None
            members.append(Member(machine, process, password=password, options=options, name=name, founder=founder))
        members[0].found()
        for member in members[1:]:
            member.begin()
            wait_until(partial(_is_ready, member), "it takes writes")
        yield Cluster(members)


def _options(library: Path, machine: Machine, door: str, doors: list[str]) -> list[str]:
    provider_options = {
        "base_host": machine.address,
        "gmcast.listen_addr": f"tcp://{door}",
        "ist.recv_addr": f"{machine.address}:{free_port()}",
        "gcache.size": "128M",
    }
    return [
        *("--wsrep-on=ON", f"--wsrep-provider={library}", f"--wsrep-cluster-address=gcomm://{','.join(doors)}"),
        *(f"--wsrep-node-address={machine.address}", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2"),
        f"--wsrep-sst-method={METHOD}",
        f"--wsrep-provider-options={';'.join(f'{key}={value}' for key, value in provider_options.items())}",
    ]


def _is_ready(member: Server) -> bool:
    try:
        return _status(member, "wsrep_ready") == "ON"
    except sa.exc.DBAPIError:
        return False


def _size(member: Server) -> int:
    return int(_status(member, "wsrep_cluster_size"))


def _status(member: Server, name: str) -> str:
    status = "SELECT variable_value FROM information_schema.global_status WHERE variable_name"
    [value] = ask(member, f"{status} = '{name}'")
    return str(value)
