"""Several hosts on this machine: network namespaces with a router between them. For root on Linux.

All of it, links and addresses too, is in namespaces without a name: the machine's own network is not touched, and the
kernel removes everything with the last process in it. Networks of several programs do not see each other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from signal import SIGKILL
from typing import IO, cast

from servers.errors import Unavailable
from servers.machine import Machine
from servers.namespace_keeper import GRACE_SECONDS, KILL_SECONDS, end_all_beside, processes_beside

KEEPER = Path(__file__).with_name("namespace_keeper.py")
PROGRAMS = ("ip", "nsenter", "unshare")
ADDRESS = "10.99.{number}.{end}"
"""Of the two ends of a link: 1 is the router's, 2 the host's."""


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


class Host(Machine):
    """A machine of the network."""

    def __init__(self, name: str, number: int, router: Namespace, inside: Namespace) -> None:
        self.name = name
        self.address = ADDRESS.format(number=number, end=2)
        self._router, self._inside = router, inside
        self._port, gateway = f"port{number}", ADDRESS.format(number=number, end=1)
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

    def cut(self, *others: Host) -> None:
        """Drop every packet to this host and from it, or only those between it and others. Nobody is told: connections
        stay open on both sides.
        """
        self._router.ip(*(f"rule add {drop}" for drop in self._drops(others)))

    def heal(self, *others: Host) -> None:
        """Let packets pass again. `others`: as they were given to `cut`."""
        self._router.ip(*(f"rule del {drop}" for drop in self._drops(others)))

    def _drops(self, others: Sequence[Host]) -> list[str]:
        if not others:
            return [f"iif {self._port} blackhole pref 1", f"to {self.address} blackhole pref 1"]
        ways = [(one, other) for host in others for one, other in permutations((self.address, host.address))]
        return [f"from {one} to {other} blackhole pref 1" for one, other in ways]

    def processes(self) -> list[int]:
        """All that run on this host."""
        return processes_beside(self._inside.id)

    def vanish(self) -> None:
        """Cut it off, then end every process on it with SIGKILL: no packet says so to others."""
        self.cut()
        self._inside.kill()


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
