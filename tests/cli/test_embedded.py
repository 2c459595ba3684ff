"""The embedded Postgres: starts, is shared, and is gone afterwards, however its commands end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from claimjobs import embedded, keeper
from claimjobs.cli import exits
from tests.backends import wait_for
from tests.cli.command import claimjobs

HOLD = """
import sys
from claimjobs import embedded
with embedded.running(lambda said: None) as url:
    print(url, flush=True)
    sys.stdin.read()
"""
"""A command that needs the server until its standard input ends."""


def make_folder(name: str) -> Path:
    """A folder that the account of root's server may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="claimjobs-test-"))
    folder.chmod(0o755)
    (folder / name).mkdir()
    return folder / name


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the embedded server keeps its data. At the end no process may be left that has to do with it."""
    folder = make_folder("with a space")
    monkeypatch.setenv("CLAIMJOBS_DATA", str(folder))
    yield folder
    gone(folder)
    shutil.rmtree(folder.parent)


def processes(folder: Path) -> list[str]:
    """Everything that runs for a data folder: keepers by their command line, servers by their working folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in f"{process.cmdline()} {process.cwd()}":
                found.append(f"{process.pid} {process.name()}")
    return found


def gone(folder: Path) -> None:
    wait_for(lambda: not processes(folder), "the server and its keepers to be gone", 30)


@contextlib.contextmanager
def holding() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that needs the server, and the URL it was given."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().decode().strip()
        finally:
            process.kill()


def answers(url: str) -> bool:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            return bool(connection.scalar(sa.text("select true")))
    except sa.exc.OperationalError:
        return False


def test_commands_without_a_url_use_it_and_say_so(data: Path) -> None:
    first = claimjobs("setup-tables")
    assert (first.code, first.out) == (exits.OK, "jobs: made\nclaimjobs_owners: made\n")
    assert first.err == (
        f"claimjobs: using the embedded Postgres 18, data in {data}/postgres; "
        "give --url or CLAIMJOBS_URL for a server of your own\n"
    )
    assert not processes(data)
    assert claimjobs("enqueue", "-", stdin=b'{"d": "a", "e": "b"}').out == "1\n"
    assert "jobs: 1 unclaimed" in claimjobs("status").out
    assert not processes(data)


def test_commands_share_it_and_the_last_one_stops_it(data: Path) -> None:
    with holding() as (first, url), holding() as (second, other):
        assert url == other
        first.communicate(timeout=30)
        assert answers(url)
        assert claimjobs("setup-tables").code == exits.OK
        assert answers(url)
        second.communicate(timeout=30)
    assert not answers(url)
    gone(data)


def test_a_command_that_is_killed_leaves_nothing(data: Path) -> None:
    with holding() as (process, url):
        assert answers(url)
        process.kill()
    gone(data)
    assert claimjobs("setup-tables").code == exits.OK


def test_a_command_that_is_killed_leaves_the_server_to_the_others(data: Path) -> None:
    with holding() as (first, url), holding() as (second, _):
        first.kill()
        first.wait(30)
        wait_for(lambda: keepers(data) == 1, "the keeper of the killed command to end", 30)
        assert answers(url)
        second.communicate(timeout=30)
    gone(data)


def keepers(data: Path) -> int:
    return len([process for process in processes(data) if "python" in process])


def test_a_command_that_is_killed_while_the_server_starts_leaves_nothing(data: Path) -> None:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: keepers(data), "a keeper", 30)
        process.kill()
    gone(data)


def test_ctrl_c_is_not_for_the_server(data: Path) -> None:
    with holding() as (process, url):
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: to the whole group
        process.wait(30)
        groups = {os.getpgid(int(found.split()[0])) for found in processes(data)}
        assert process.pid not in groups
    gone(data)
    assert not answers(url)


def test_a_server_that_crashed_is_started_again(data: Path) -> None:
    with holding() as (_, url):
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.text("create table kept (id int)"))
        pid = int((data / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: len(processes(data)) == keepers(data), "the server's processes to be gone", 30)
        with holding() as (_, again), sa.create_engine(again, poolclass=sa.NullPool).connect() as connection:
            assert connection.scalar(sa.text("select count(*) from kept")) == 0


@pytest.mark.parametrize("name", ["x" * 100, "a,b", "it's $HOME", "ä"])
def test_a_path_that_a_socket_cannot_have(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder, elsewhere = make_folder(name), make_folder("sockets")
    monkeypatch.setenv("CLAIMJOBS_DATA", str(folder))
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    assert claimjobs("setup-tables").code == exits.OK
    gone(folder)
    assert list(elsewhere.iterdir()) == []
    for made in (folder, elsewhere):
        shutil.rmtree(made.parent)


def test_what_an_interrupted_start_left_is_no_data(data: Path) -> None:
    half = data / "postgres" / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    assert claimjobs("setup-tables").code == exits.OK
    assert not half.exists()


def test_a_server_that_does_not_start_says_why(data: Path) -> None:
    broken = data / "postgres" / "data"
    broken.mkdir(parents=True)
    (broken / "PG_VERSION").write_text("18\n")
    ended = claimjobs("status")
    assert ended.code == exits.CONNECTION
    assert "the embedded Postgres does not start: pg_ctl failed" in ended.err
    assert "give --url or CLAIMJOBS_URL" in ended.err


def test_data_of_a_release_that_is_not_there(data: Path) -> None:
    (data / "postgres" / "data").mkdir(parents=True)
    (data / "postgres" / "data" / "PG_VERSION").write_text("99\n")
    ended = claimjobs("status")
    assert ended.code == exits.CONNECTION
    assert "need Postgres 99" in ended.err


def test_without_the_extra_the_next_step_is_told(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setattr(embedded, "WHEEL", "no_such_wheel")
    ended = claimjobs("status")
    assert ended.code == exits.CONNECTION
    assert "pip install 'claimjobs[embedded]'" in ended.err


def test_data_are_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLAIMJOBS_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/home/somebody/.data")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert embedded.data_folder() == Path("/home/somebody/.data/claimjobs/postgres")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert embedded.data_folder() == Path("/var/lib/claimjobs/postgres")


def test_nobody_else_can_enter_the_server(data: Path) -> None:
    with holding():
        for name in ("data", "run"):
            assert (data / "postgres" / name).stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_roots_server_runs_as_an_account_without_rights(data: Path) -> None:
    with holding():
        pid = int((data / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0])
        assert psutil.Process(pid).username() == embedded.ROOTS_SERVANT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_root_copies_programs_that_its_server_cannot_reach(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = embedded._programs(data)
    account = pwd.getpwnam(embedded.ROOTS_SERVANT)
    held = keeper.Keeper(data / "postgres", programs, {"user": account.pw_uid, "group": account.pw_gid})
    monkeypatch.setattr(keeper, "_open_to_all", lambda folder: folder != programs)
    held.come()
    try:
        assert held.programs.is_relative_to(data / "postgres" / "programs")
        assert (held.programs / "postgres").exists()
    finally:
        held.go()
