"""Hosts in network namespaces: they reach each other, can be cut off, and leave nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest

from servers import Unavailable
from servers.namespace_keeper import processes_beside
from servers.network import Host, network

pytestmark = pytest.mark.thorough("it starts servers of its own, to see how they start and end")

LISTEN = """
import socket
listening = socket.create_server(("", 7000))
print("listening", flush=True)
while True:
    line = listening.accept()[0]
    line.sendall(line.recv(10))
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=0.5) as line:
    line.sendall(b"hello")
    print(line.recv(10).decode())
"""
KEEP = """
import subprocess, sys, time
from servers.network import network
with network("one") as hosts:
    sleeper = subprocess.Popen([*hosts["one"].prefix, "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
    sleeper.stdout.readline()
    print(hosts["one"].prefix[2], flush=True)
    time.sleep(600)
"""
SECONDS = 30.0


@pytest.fixture
def hosts() -> Iterator[dict[str, Host]]:
    try:
        with network("one", "two") as both:
            yield both
    except Unavailable as reason:
        pytest.skip(str(reason))


def python(host: Host, program: str, *words: str) -> subprocess.Popen[str]:
    command = [*host.prefix, sys.executable, "-I", "-c", program, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def answer(host: Host, address: str) -> str:
    with python(host, ASK, address) as asking:
        return asking.communicate(timeout=SECONDS)[0].strip()


def test_a_host_that_is_cut_off_is_not_heard_until_it_is_healed(hosts: dict[str, Host]) -> None:
    one, two = hosts.values()
    with python(two, LISTEN) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        assert answer(one, two.address) == "hello"
        two.cut()
        assert answer(one, two.address) == ""
        two.heal()
        assert answer(one, two.address) == "hello"
        two.vanish()
        assert listening.wait(SECONDS) == -SIGKILL
    assert answer(one, two.address) == ""


def test_two_hosts_that_are_cut_off_from_each_other_are_heard_by_others() -> None:
    try:
        with network("one", "two", "three") as hosts:
            one, two, three = hosts.values()
            with python(two, LISTEN) as listening:
                assert listening.stdout is not None
                assert listening.stdout.readline() == "listening\n"
                two.cut(one)
                assert (answer(one, two.address), answer(three, two.address)) == ("", "hello")
                two.heal(one)
                assert answer(one, two.address) == "hello"
                listening.kill()
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_nothing_is_left_of_a_network_whose_program_is_killed(hosts: dict[str, Host]) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", KEEP], cwd=root, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        keeper = int(program.stdout.readline())
        assert processes_beside(keeper)
        program.kill()
    deadline = time.monotonic() + SECONDS
    while (left := processes_beside(keeper) or Path(f"/proc/{keeper}").exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert hosts
