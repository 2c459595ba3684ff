"""The embedded Postgres: starts, is shared, and is gone afterwards, however its commands end."""

from __future__ import annotations

import contextlib
import multiprocessing
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

from claimjobs import database_url
from claimjobs.cli import exits
from claimjobs.embedded import keeper
from claimjobs.embedded import server as embedded
from tests.backends import wait_for
from tests.cli.command import claimjobs, shared
from tests.docs.markdown import README, blocks

HOLD = """
import sys
from claimjobs.embedded import server as embedded
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


RARE = pytest.mark.thorough("the server is started and stopped for it alone, and what it shows happens to few")


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
    wait_for(lambda: not processes(folder), "the server and its keepers to be gone")


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


def postmaster(data: Path) -> int:
    return int((data / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0])


def answers(url: str) -> bool:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            return bool(connection.scalar(sa.text("select true")))
    except sa.exc.OperationalError:
        return False


def test_commands_without_a_url_use_it_and_say_so(data: Path) -> None:
    first = claimjobs("setup-tables")
    assert (first.code, first.out) == (
        exits.OK,
        f"jobs: made\n{shared('made')}",
    )
    assert first.err == (
        f"claimjobs: using the embedded Postgres 18, data in {data}/postgres; "
        "give --url or CLAIMJOBS_URL for a server of your own\n"
        "claimjobs: Done jobs are deleted from table 'jobs'.\n"
    )
    assert not processes(data)
    assert claimjobs("enqueue", "-", stdin=b'{"d": "a", "e": "b"}').out == "1\n"
    assert "jobs: 1 unclaimed" in claimjobs("status").out
    assert not processes(data)


def test_a_program_gets_the_url_it_names_else_the_variables_else_the_embedded_servers(
    data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CLAIMJOBS_URL", raising=False)
    with database_url() as url:
        assert answers(url)
        assert f"using the embedded Postgres 18, data in {data}/postgres" in capfd.readouterr().err
    assert not processes(data)
    monkeypatch.setenv("CLAIMJOBS_URL", "mysql://variable/jobs")
    with database_url() as url, database_url("mysql://named/jobs") as named:
        assert (url, named) == ("mysql+pymysql://variable/jobs", "mysql+pymysql://named/jobs")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("given", [["--url", ""], ["--url", " "], []])
def test_an_empty_url_is_refused(data: Path, given: list[str]) -> None:
    """`--url "$UNSET"` in a crontab worked on another database without a word."""
    for words in (["status", *given], [*given, "status"], ["setup-tables", "--sql", *given]):
        ended = claimjobs(*words, env={"CLAIMJOBS_URL": ""})
        assert ended.code == exits.CONNECTION
        assert (
            f"{'the database URL' if given else 'CLAIMJOBS_URL'} is empty: give the URL of a database, or leave"
            in ended.err
        )
    assert not (data / "postgres").exists()


def test_the_readmes_program_needs_no_server(data: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CLAIMJOBS_URL"}
    [program] = [block for block in blocks(README, "python") if not block.file]
    [output] = blocks(README, "text")
    run = subprocess.run(
        [sys.executable, "-c", program.text], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout == output.text


def test_commands_share_it_and_the_last_one_stops_it(data: Path) -> None:
    with holding() as (first, url), holding() as (second, other):
        assert url == other
        first.communicate(timeout=120)
        assert answers(url)
        assert claimjobs("setup-tables").code == exits.OK
        assert answers(url)
        second.communicate(timeout=120)
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
        first.wait(120)
        wait_for(lambda: keepers(data) == 1, "the keeper of the killed command to end")
        assert answers(url)
        second.communicate(timeout=120)
    gone(data)


def keepers(data: Path) -> int:
    return len([process for process in processes(data) if "python" in process])


@RARE
def test_a_command_that_is_killed_while_the_server_starts_leaves_nothing(data: Path) -> None:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: keepers(data), "a keeper")
        process.kill()
    gone(data)


def test_a_forked_process_that_goes_on_does_not_keep_the_server(data: Path) -> None:
    """It has a copy of the pipe that tells the keeper of the end."""
    child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    with embedded.running(lambda _: None):
        child.start()
    assert not [found for found in processes(data) if not found.startswith(f"{child.pid} ")]
    child.kill()
    child.join()


def test_ctrl_c_is_not_for_the_server(data: Path) -> None:
    with holding() as (process, url):
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: to the whole group
        process.wait(120)
        groups = {os.getpgid(int(found.split()[0])) for found in processes(data)}
        assert process.pid not in groups
    gone(data)
    assert not answers(url)


def test_a_server_that_crashed_is_started_again(data: Path) -> None:
    with holding() as (_, url):
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.text("create table kept (id int)"))
        os.kill(postmaster(data), signal.SIGKILL)
        wait_for(lambda: len(processes(data)) == keepers(data), "the server's processes to be gone")
        with holding() as (_, again), sa.create_engine(again, poolclass=sa.NullPool).connect() as connection:
            assert connection.scalar(sa.text("select count(*) from kept")) == 0


@pytest.mark.parametrize("name", ["x" * 100, "a,b", "it's here", "ä"])
@RARE
def test_a_path_that_a_socket_cannot_have(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder, elsewhere = make_folder(name), make_folder("sockets")
    monkeypatch.setenv("CLAIMJOBS_DATA", str(folder))
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    with holding() as (_, url):
        os.kill(postmaster(folder), signal.SIGKILL)
        wait_for(lambda: len(processes(folder)) == keepers(folder), "the server's processes to be gone")
        with holding() as (_, again):
            assert (again, answers(url)) == (url, True)
        os.kill(postmaster(folder), signal.SIGKILL)
    gone(folder)
    assert list(elsewhere.iterdir()) == []
    for made in (folder, elsewhere):
        shutil.rmtree(made.parent)


@RARE
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
    assert "the embedded Postgres does not start: the server ended while it started; the end of" in ended.err
    assert "give --url or CLAIMJOBS_URL" in ended.err


@pytest.mark.parametrize("release", ["99", ""])
def test_data_of_a_release_that_is_not_there(data: Path, release: str) -> None:
    (data / "postgres" / "data").mkdir(parents=True)
    (data / "postgres" / "data" / "PG_VERSION").write_text(f"{release}\n")
    ended = claimjobs("status")
    assert ended.code == exits.CONNECTION
    assert f"need Postgres {release!r}" in ended.err


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/x", "loop", "x" * 260])
def test_a_data_folder_that_cannot_be(data: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    (data / "loop").symlink_to(data / "loop")
    monkeypatch.setenv("CLAIMJOBS_DATA", folder if folder.startswith("~") else str(data / folder))
    ended = claimjobs("status")
    assert ended.code == exits.CONNECTION
    assert "set CLAIMJOBS_DATA to a folder that this account can make, or give --url" in ended.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server has another account")
def test_an_account_that_is_not_there(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "ROOT_ACCOUNT", "nobody-of-this-name")
    ended = claimjobs("status")
    assert (ended.code, "give --url" in ended.err) == (exits.CONNECTION, True)


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
        assert psutil.Process(postmaster(data)).username() == embedded.ROOT_ACCOUNT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_root_is_told_that_its_server_cannot_reach_the_data(data: Path) -> None:
    data.chmod(0o700)
    ended = claimjobs("status")
    assert ended.code == exits.CONNECTION
    assert f"no other account can enter {data}/postgres: set CLAIMJOBS_DATA" in ended.err


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: Path) -> Path:
    """An installation that nobody but its owner can enter. All commands take the server's programs from there."""
    folder = tmp_path / "it's a clone & more"
    package = embedded._programs(data).parent.parent
    for source in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(source, folder / source.name, symlinks=True, ignore=shutil.ignore_patterns("pginstall"))
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.lstat().st_mode & 0o700)
    monkeypatch.setenv("CLAIMJOBS_DATA", str(data / "it's here"))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    assert embedded._programs(data).is_relative_to(folder)
    return folder


def test_commands_of_a_private_clone_share_it_and_the_last_one_stops_it(private: Path, data: Path) -> None:
    with holding() as (first, url), holding() as (second, other):
        assert url == other
        first.communicate(timeout=120)
        assert answers(url)
        second.communicate(timeout=120)
    gone(data)


@RARE
def test_the_last_command_stops_it_though_its_programs_are_gone(private: Path, data: Path) -> None:
    with holding() as (first, url):
        shutil.rmtree(private)
        for copy in [*data.rglob("programs")]:
            shutil.rmtree(copy)
        assert answers(url)
        first.communicate(timeout=120)
    gone(data)


def test_first_commands_that_come_at_once_share_one_server(data: Path) -> None:
    command = [sys.executable, "-c", HOLD]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(4)
        ]
        urls = {process.stdout.readline().decode().strip() for process in started if process.stdout}
        assert len(urls) == 1
        assert answers(urls.pop())
        for process in started:
            process.communicate(timeout=120)
            assert process.returncode == 0
    gone(data)


@RARE
def test_a_server_that_does_not_obey_is_ended_by_force(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "STOP_SECONDS", 0.2)
    held = kept(data)
    held.join()
    os.kill(postmaster(data), signal.SIGSTOP)
    held.leave()
    gone(data)


NOBODY = pwd.getpwnam(embedded.ROOT_ACCOUNT)
ACCOUNT = {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid} if os.geteuid() == 0 else {}


def kept(data: Path) -> keeper.Keeper:
    """A keeper in this process."""
    return keeper.Keeper(data / "postgres", embedded._programs(data / "postgres" / "data"), ACCOUNT)


def test_a_server_that_cannot_be_stopped_is_told(data: Path) -> None:
    said: list[str] = []
    with holding() as (first, _), embedded.running(said.append) as url:
        first.communicate(timeout=120)
        pid = hide_server(data)
    assert answers(url)
    assert said[1:] == [f"the embedded Postgres may run on: {ADVICE}"]
    os.kill(pid, signal.SIGINT)


ADVICE = f"process {keeper.NO_PROCESS} could not be ended: end it with `kill -INT {keeper.NO_PROCESS}`"


def hide_server(data: Path) -> int:
    """Let the pid file name no process, as for a keeper in another container that has the same folder."""
    file = data / "postgres" / "data" / "postmaster.pid"
    pid, *rest = file.read_text().splitlines()
    file.write_text("\n".join([keeper.NO_PROCESS, *rest, ""]))
    return int(pid)


@RARE
def test_a_copy_of_the_data_has_a_server_of_its_own(data: Path) -> None:
    with holding() as (_, url):
        copy = data / "copy"
        (copy / "postgres").mkdir(parents=True)
        subprocess.run(["cp", "-a", data / "postgres" / "data", copy / "postgres"], check=True)
        second = kept(copy)
        assert second.join() not in url
        second.leave()
        assert answers(url)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@RARE
def test_root_copies_programs_that_its_server_cannot_reach(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = kept(data)
    programs = held.programs
    monkeypatch.setattr(keeper, "_open_to_all", lambda folder: folder != programs)
    held.join()
    try:
        assert held.programs.is_relative_to(data / "postgres" / "programs")
        assert (held.programs / "postgres").exists()
    finally:
        held.leave()
