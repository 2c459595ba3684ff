"""A MySQL group of three members of our own: with a single primary, which is elected, or all of them primaries."""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from servers.backends import NAME
from servers.machine import THIS_MACHINE, Machine
from servers.programs import free_port
from servers.replication import as_one, ask, run, wait_until
from servers.server import Server

THREE = (THIS_MACHINE, THIS_MACHINE, THIS_MACHINE)
"""The fewest members of which a majority is left when one is killed."""


class Group:
    """The members, all of which answer."""

    def __init__(self, members: list[Server], password: str) -> None:
        self.members = members
        self._password = password

    @property
    def together(self) -> Server:
        """All as one server, which is not ours to kill: each of them is."""
        return as_one(self.members)

    @property
    def primary(self) -> Server:
        """The one that takes writes. Raises StopIteration if none does."""
        return next(member for member in self.members if _takes_writes(member))

    def wait_for_a_primary(self) -> None:
        """Return when one takes writes."""
        wait_until(lambda: any(map(_takes_writes, self.members)), "the group has a primary")

    @property
    def size(self) -> int:
        """How many members the group has, as the first one sees it."""
        [count] = ask(self.members[0], "SELECT count(*) FROM performance_schema.replication_group_members")
        return int(count)

    def bring_back(self, member: Server) -> None:
        """Let a member that was killed join again, when the others have expelled it: before, they refuse it."""
        wait_until(lambda: self.size < len(self.members), "the others have expelled it")
        member.restart()
        run(member, _start(self._password))
        wait_until(lambda: self.is_back(member), "the member is back")

    def is_back(self, member: Server) -> bool:
        """Whether a member that was killed or cut off takes part again."""
        return self.size == _online(self.members[0]) == _online(member)


@contextmanager
def group(machines: Sequence[Machine] = THREE, *, single: bool = True) -> Iterator[Group]:
    """A group with a member on each machine, all online. `single`: one of them is the primary. Raises Unavailable."""
    password, name = secrets.token_hex(8), str(uuid.uuid4())
    doors = [f"{machine.address}:{free_port()}" for machine in machines]
    with contextlib.ExitStack() as stack:
        members: list[Server] = []
        for number, machine in enumerate(machines):
            options = _options(number, name, doors, single=single)
            members.append(stack.enter_context(machine.serve("mysql", password=password, options=options)))
            _join(members, password)
        yield Group(members, password)


def _options(number: int, name: str, doors: list[str], *, single: bool) -> list[str]:
    addresses = [door.partition(":")[0] for door in doors]
    settings = {
        "group-name": name,
        "local-address": doors[number],
        "group-seeds": ",".join(doors),
        "ip-allowlist": ",".join(addresses),
        "recovery-get-public-key": "ON",
        "single-primary-mode": "ON" if single else "OFF",
        "start-on-boot": "OFF",
        "member-expel-timeout": "0",
    }
    return [
        *(f"--server-id={number + 1}", "--log-bin=binlog", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"),
        *(f"--report-host={addresses[number]}", "--plugin-load-add=group_replication.so"),
        *(f"--loose-group-replication-{setting}={value}" for setting, value in settings.items()),
    ]


def _join(members: list[Server], password: str) -> None:
    """Let the last one join; the first makes the group."""
    founds = len(members) == 1
    run(members[-1], f"SET GLOBAL group_replication_bootstrap_group = {founds:d}", _start(password))
    run(members[-1], "SET GLOBAL group_replication_bootstrap_group = 0")
    wait_until(lambda: all(_online(one) == len(members) for one in members), "every member is online")


def _start(password: str) -> str:
    return f"START GROUP_REPLICATION USER = '{NAME}', PASSWORD = '{password}'"


def _online(member: Server) -> int:
    """How many members are online, as this one sees it."""
    query = "SELECT count(*) FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'"
    return int(ask(member, query)[0])


def _takes_writes(member: Server) -> bool:
    try:
        return ask(member, "SELECT @@global.read_only") == [0]
    except sa.exc.DBAPIError:
        return False
