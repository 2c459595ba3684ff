"""A MySQL group of three members of our own: with a single primary, which is elected, or all of them primaries."""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from servers.backends import NAME
from servers.binaries import mysql
from servers.process import Process
from servers.programs import ProgramServer, free_port
from servers.replication import as_one, ask, run, wait_until
from servers.server import Server

MEMBERS = 3
"""The fewest of which a majority is left when one is killed."""


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
        """Let a member that was killed join again; return when it, or one that was cut off, is back."""
        if not member.answers:
            member.restart()
            run(member, _start(self._password))
        wait_until(lambda: _online(self.members[0]) == _online(member) == len(self.members), "the member is back")


@contextmanager
def group(*, single: bool = True) -> Iterator[Group]:
    """A group whose members are all online. `single`: one of them is the primary. Raises Unavailable."""
    password, name = secrets.token_hex(8), str(uuid.uuid4())
    doors = [f"127.0.0.1:{free_port()}" for _ in range(MEMBERS)]
    with contextlib.ExitStack() as stack:
        members: list[Server] = []
        for number, door in enumerate(doors, 1):
            process = Process("mysql", mysql.STOP)
            stack.callback(process.close)
            options = _options(number, name, door, doors, single=single)
            members.append(ProgramServer("mysql", mysql, process, password=password, options=options).begin())
            _join(members, password)
        yield Group(members, password)


def _options(number: int, name: str, door: str, doors: list[str], *, single: bool) -> list[str]:
    settings = {
        "group-name": name,
        "local-address": door,
        "group-seeds": ",".join(doors),
        "ip-allowlist": "127.0.0.1",
        "recovery-get-public-key": "ON",
        "single-primary-mode": "ON" if single else "OFF",
        "start-on-boot": "OFF",
        "member-expel-timeout": "0",
    }
    return [
        *(f"--server-id={number}", "--log-bin=binlog", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"),
        *("--report-host=127.0.0.1", "--plugin-load-add=group_replication.so"),
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
