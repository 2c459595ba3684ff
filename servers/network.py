"""Several hosts on this machine: network namespaces with a router between them. For root on Linux.

All of it, links and addresses too, is in namespaces without a name: the machine's own network is not touched, and the
kernel removes everything with the last process in it. Networks of several programs do not see each other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import IO, cast

import sqlalchemy as sa

from servers.backends import NAME, Backend, url
from servers.errors import Unavailable
from servers.namespace_keeper import GRACE_SECONDS, KILL_SECONDS, end_all_beside, processes_beside
from servers.process import Process
from servers.programs import RECIPES, ProgramServer

KEEPER = Path(__file__).with_name("namespace_keeper.py")
PROGRAMS = ("ip", "nsenter", "unshare")
ADDRESS = "10.99.{number}.{end}"
"""Of the two ends of a link: 1 is the router's, 2 the host's."""
HBA = """
local all all scram-sha-256
host all all all scram-sha-256
host replication all all scram-sha-256
"""


class Namespace:
    """A network namespace, which lasts as long as the process that keeps it."""

    def __init__(self) -> None:
        command = ["unshare", "--net", sys.executable, "-I", "-S", str(KEEPER)]
        self._keeper = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if not cast(IO[str], self._keeper.stdout).readline():
            said = self._keeper.communicate()[1].strip()
            raise Unavailable(f"no network namespace ({said}): run this as root of a machine that allows them")

    @property
    def id(self) -> int:
        """The process that keeps it, by which other programs find it."""
        return self._keeper.pid

    @property
    def prefix(self) -> list[str]:
        """What a command begins with that is to run inside. Its process id is that of the command."""
        return ["nsenter", "--target", str(self.id), "--net", "--"]

    def run(self, *command: str, given: str = "") -> None:
        """Run a command inside. Raises Unavailable."""
        ended = subprocess.run([*self.prefix, *command], input=given, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise Unavailable(f"`{' '.join(command)}` failed in a network namespace: {ended.stderr.strip()}")

    def ip(self, *lines: str) -> None:
        """Run commands of the program `ip` inside. Raises Unavailable."""
        self.run("ip", "-batch", "-", given="".join(f"{line}\n" for line in lines))

    def kill(self) -> None:
        """End every process inside with SIGKILL."""
        end_all_beside(self.id, SIGKILL, KILL_SECONDS)

    def close(self) -> None:
        """Return when it is gone, with all that ran inside."""
        self._keeper.communicate(timeout=GRACE_SECONDS + 2 * KILL_SECONDS)


class Host:
    """A machine of the network."""

    def __init__(self, name: str, number: int, router: Namespace, inside: Namespace) -> None:
        self.name = name
        self.address = ADDRESS.format(number=number, end=2)
        self._router, self._inside = router, inside
        self._port, gateway = f"port{number}", ADDRESS.format(number=number, end=1)
        self._drops = (f"iif {self._port} blackhole pref 1", f"to {self.address} blackhole pref 1")
        router.ip(
            f"link add name {self._port} type veth peer name eth0 netns {inside.id}",
            f"address add {gateway}/24 dev {self._port}",
            f"link set {self._port} up",
        )
        inside.ip(
            "link set lo up",
            f"address add {self.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {gateway}",
        )

    @property
    def prefix(self) -> list[str]:
        """What a command begins with that is to run on this host."""
        return self._inside.prefix

    def cut(self) -> None:
        """Drop every packet to this host and from it. Nobody is told: connections stay open on both sides."""
        self._router.ip(*(f"rule add {drop}" for drop in self._drops))

    def heal(self) -> None:
        """Let packets pass again."""
        self._router.ip(*(f"rule del {drop}" for drop in self._drops))

    def processes(self) -> list[int]:
        """All that run on this host."""
        return processes_beside(self._inside.id)

    def vanish(self) -> None:
        """Cut it off, then end every process on it with SIGKILL: no packet says so to others."""
        self.cut()
        self._inside.kill()

    @contextmanager
    def serve(
        self, backend: Backend, *, password: str | None = None, options: Sequence[str] = ()
    ) -> Iterator[HostServer]:
        """A server on this host. Raises Unavailable."""
        recipe = RECIPES[backend]
        recipe.fetch()
        process = Process(backend, recipe.STOP, self.prefix)
        try:
            server = HostServer(self, backend, process, password=password, options=options)
            server.begin()
            yield server
        finally:
            process.close()


@contextmanager
def network(*names: str) -> Iterator[dict[str, Host]]:
    """Hosts with these names, each of which reaches all others. Raises Unavailable."""
    if os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        raise Unavailable(
            f"a network of hosts needs root and the programs {', '.join(PROGRAMS)}: run it as root on Linux"
        )
    with contextlib.ExitStack() as stack:
        router = stack.enter_context(contextlib.closing(Namespace()))
        router.run("tee", "/proc/sys/net/ipv4/ip_forward", given="1")
        inside = {name: stack.enter_context(contextlib.closing(Namespace())) for name in names}
        yield {name: Host(name, number, router, inside[name]) for number, name in enumerate(names, 1)}


class HostServer(ProgramServer):
    """A server on a host of a network. `url` is for this machine, and leads through the server's Unix socket."""

    def __init__(
        self, host: Host, backend: Backend, process: Process, *, password: str | None, options: Sequence[str]
    ) -> None:
        postgres = backend == "postgres"
        hba = process.write("pg_hba.conf", HBA) if postgres else None
        everywhere = ["-c", "listen_addresses=*", "-c", f"hba_file={hba}"] if postgres else ["--bind-address=0.0.0.0"]
        super().__init__(backend, RECIPES[backend], process, password=password, options=[*everywhere, *options])
        self.network_url = url(backend, host.address, self._place.port, self._place.password)
        """For programs on hosts of the network."""
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
