"""A server of our own, its end, and the end of its parent: on Postgres, which starts fastest."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from servers import Server, Unavailable
from servers.process import Command, Process
from servers.programs import find

pytestmark = pytest.mark.thorough("it starts servers of its own, to see how they start and end")

SECONDS = 30
PARENT = """
import sys
from servers.programs import find
with find("postgres").start() as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with find("postgres").start() as started:
        yield started


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process("test", signal.SIGTERM)
    yield process
    process.close()


def until(seen: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not seen() and time.monotonic() < deadline:
        time.sleep(0.02)
    return seen()


def execute(url: str, statement: str) -> list[object]:
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return list(result.scalars()) if result.returns_rows else []
    finally:
        engine.dispose()


def data_folders(processes: list[psutil.Process]) -> list[Path]:
    """The folders that servers among these processes were given."""
    words = [word for process in processes for word in command_line(process)]
    return [Path(word).parent for word in words if word.endswith("/data")]


def command_line(process: psutil.Process) -> list[str]:
    """A backend that served the last connection may be gone by now."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def test_a_crashed_server_comes_back_with_its_data(server: Server) -> None:
    execute(server.url, "create table kept as select 42 as answer")
    server.kill()
    with pytest.raises(OperationalError):
        execute(server.url, "select answer from kept")
    server.restart()
    assert execute(server.url, "select answer from kept") == [42]


def test_a_wrong_password_is_refused(server: Server) -> None:
    execute(server.url, "create role stranger login password 'right'")
    stranger = server.url.partition("@")[2]
    with pytest.raises(OperationalError, match="password authentication failed"):
        execute(f"postgresql+psycopg://stranger:wrong@{stranger}", "select 1")


def test_nothing_is_left_of_a_closed_server() -> None:
    others = set(psutil.Process().children(recursive=True))  # the servers of the whole run
    with find("postgres").start():
        ours = [process for process in psutil.Process().children(recursive=True) if process not in others]
        folders = data_folders(ours)
    assert folders
    assert not any(process.is_running() for process in ours)
    assert not any(folder.exists() for folder in folders)


def test_nothing_is_left_when_the_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=-1, stdout=-1, text=True) as parent:
        assert parent.stdout
        assert parent.stdout.readline().startswith("postgresql+psycopg://")
        theirs = psutil.Process(parent.pid).children(recursive=True)
        folders = data_folders(theirs)
        parent.kill()
    assert folders
    assert until(lambda: not any(process.is_running() for process in theirs))
    assert until(lambda: not any(folder.exists() for folder in folders))


def test_a_failed_command_shows_the_end_of_its_log(process: Process) -> None:
    command = Command(["sh", "-c", "echo the disk is full; exit 3"])
    with pytest.raises(Unavailable, match=r"ended with status 3(.|\n)*the disk is full"):
        process.run(command, SECONDS)


def test_a_closed_server_cannot_be_restarted(server: Server) -> None:
    server.close()
    with pytest.raises(Unavailable, match="start another one"):
        server.restart()


def test_a_server_that_is_not_ours_is_neither_killed_nor_restarted(server: Server) -> None:
    borrowed = Server("postgres", server.url, "CLAIMJOBS_TEST_POSTGRES_URL")
    with pytest.raises(Unavailable, match=r"cannot kill .* not a process of ours"):
        borrowed.kill()
    with pytest.raises(Unavailable, match="cannot restart"):
        borrowed.restart()
