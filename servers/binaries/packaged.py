"""What MySQL and MariaDB share: a server in a distribution's package, and most of its options."""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from servers import cache, packages
from servers.backends import NAME
from servers.binaries.recipe import Ticket
from servers.errors import Unavailable
from servers.prefix import SYSTEM, Program

ORIGIN = ".claimjobs-origin"
NOT_DURABLE = (
    "--innodb-flush-log-at-trx-commit=2",  # written, and so outlives the process, but not flushed
    "--innodb-flush-method=nosync",
    "--skip-innodb-doublewrite",
    "--sync-binlog=0",
)
SHARES = ("share/mysql", "share/mariadb", "share")


@dataclass(frozen=True)
class Server:
    name: str
    program: str
    package: str
    is_right: re.Pattern[str]  # what `--version` of the program must match

    def origin(self) -> str:
        return self.fetch().origin

    def describe(self) -> str:
        found = self._installed() or self._cached()
        if found is None:
            return f"not here yet: the first start will fetch it into {cache.folder() / self.name}"
        return f"{_version(found)}, {found.origin}"

    def fetch(self) -> Program:
        """The installed program, else the one in the cache, which is filled first where it is empty."""
        return self._installed() or self._in_prefix(cache.fill(self.name, self._unpack))

    def _installed(self) -> Program | None:
        found = shutil.which(self.program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if found is None:
            return None
        program = Program(Path(found).resolve(), SYSTEM, f"installed {found}")
        return program if self.is_right.search(program.version_line()) else None

    def _cached(self) -> Program | None:
        prefix = cache.filled(self.name)
        return self._in_prefix(prefix) if prefix else None

    def _in_prefix(self, prefix: Path) -> Program:
        origin = (prefix / ORIGIN).read_text()
        return Program(prefix / "usr/sbin" / self.program, prefix, f"{origin}, unpacked in {prefix}")

    def _unpack(self, into: Path) -> None:
        print(f"fetching {self.name} into {into.parent.parent}, once ...", file=sys.stderr, flush=True)
        if not self._is_unpacked(into, newest=False):
            packages.clear(into)
            if not self._is_unpacked(into, newest=True):
                raise Unavailable(f"no package has the {self.name} that was looked for: {packages.NEXT_STEP}")

    def _is_unpacked(self, into: Path, *, newest: bool) -> bool:
        """Unpack the distribution's package, or the newest one; return whether it is right."""
        (into / ORIGIN).write_text(packages.unpack_server(self.package, into, newest=newest))
        return self.is_right.search(self._in_prefix(into).version_line()) is not None


def _version(program: Program) -> str:
    found = re.search(r"Ver (\S+)", program.version_line())
    return found.group(1) if found else "unknown version"


def share(program: Program) -> Path:
    """The folder with the error messages and character sets: distributions differ."""
    folders = [program.home / name for name in SHARES]
    return next((folder for folder in folders if (folder / "charsets").is_dir()), folders[0])


def base(program: Program, place: Ticket) -> list[str]:
    """The options of every run, also the one that makes the data folder; --no-defaults must be the first."""
    options = [
        "--no-defaults",
        f"--basedir={program.home}",
        f"--lc-messages-dir={share(program)}",
        f"--character-sets-dir={share(program)}/charsets",
        f"--datadir={place.data}",
        f"--tmpdir={place.folder}",
    ]
    plugins = program.home / "lib/mysql/plugin"
    return [*options, f"--plugin-dir={plugins}"] if plugins.is_dir() else options


def listening(place: Ticket) -> list[str]:
    """Small but durable: a commit is on disk when it returns."""
    files = [f"--ssl-cert={place.folder}/server.pem", f"--ssl-key={place.folder}/server.key"]
    encrypted = [*files, "--require-secure-transport=ON"] if place.tls else []
    return [
        *encrypted,
        "--bind-address=127.0.0.1",
        f"--port={place.port}",
        f"--socket={place.folder}/{NAME}.sock",
        "--skip-name-resolve",
        "--max-connections=200",
        "--innodb-buffer-pool-size=256M",
        "--innodb-flush-log-at-trx-commit=1",
    ]


def account_sql(place: Ticket) -> str:
    """An account that may make databases and accounts, for tests; root gets a password."""
    return "\n".join(
        [
            f"CREATE DATABASE IF NOT EXISTS {NAME} CHARACTER SET utf8mb4;",
            f"CREATE USER IF NOT EXISTS '{NAME}'@'%' IDENTIFIED BY '{place.password}';",
            f"GRANT ALL ON *.* TO '{NAME}'@'%' WITH GRANT OPTION;",
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{place.password}';",
            "",
        ]
    )
