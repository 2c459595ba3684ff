"""A distribution's server package and all it needs, unpacked into one folder; nothing is installed.

apt works on a private state with an empty list of installed packages, so it resolves and fetches the whole
closure down to the C library; signatures are checked as for any other package.
"""

import os
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from servers.aptsources import debian_mirror, machine_repositories
from servers.errors import Unavailable

DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NEXT_STEP = "start Docker, install the server, or name one in CLAIMJOBS_TEST_*_URL"

# No Recommends and no descriptions; appstream's indexes are of no use here. The hooks of the machine's own
# configuration act on the system: `#clear` leaves them out.
CONFIGURATION = """
Dir::State "{state}/state";
Dir::State::status "{state}/status";
Dir::Cache "{state}/cache";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Sandbox::User "";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::CNF::DefaultEnabled "false";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""
OTHER_SOURCES = """
Dir::Etc::sourcelist "{state}/sources.list";
Dir::Etc::sourceparts "/dev/null";
"""


@dataclass(frozen=True)
class Apt:
    """apt-get on a state of its own, below `state`; `sources` None means the machine's own sources."""

    state: Path
    sources: str | None = None

    def prepare(self) -> None:
        for folder in ("state/lists/partial", "cache/archives/partial"):
            (self.state / folder).mkdir(parents=True)
        (self.state / "status").touch()
        (self.state / "sources.list").write_text(self.sources or "")
        settings = CONFIGURATION + (OTHER_SOURCES if self.sources else "")
        (self.state / "apt.conf").write_text(settings.format(state=self.state))
        self._run("apt-get", "update")

    def newest(self, pattern: str) -> str | None:
        """The name of the last package, in order of version, whose name matches."""
        found = self._run("apt-cache", "pkgnames").split()
        return max((name for name in found if re.fullmatch(pattern, name)), key=_numbers, default=None)

    def download(self, package: str) -> list[Path]:
        self._run("apt-get", "install", "--yes", "--download-only", package)
        return sorted((self.state / "cache/archives").glob("*.deb"))

    def download_alone(self, package: str) -> Path:
        """The package without what it depends on."""
        self._run("apt-get", "download", package)
        [archive] = self.state.glob("*.deb")
        return archive

    def _run(self, *command: str) -> str:
        arguments = [command[0], "--config-file", str(self.state / "apt.conf"), *command[1:]]
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
            cwd=self.state,
        )
        if done.returncode:
            raise Unavailable(f"`{' '.join(command)}` failed; {NEXT_STEP}. apt says:\n{done.stderr.strip()}")
        return done.stdout


def _numbers(name: str) -> list[int]:
    """`mysql-server-core-8.4` is newer than `...-8.0`; the name without a number is the newest."""
    return [int(number) for number in re.findall(r"\d+", name)] or [1_000]


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


def unpack_server(pattern: str, into: Path, *, newest: bool = False) -> str:
    """Unpack the newest server package whose name matches; returns where it came from, for people.

    `newest`: from Debian's unstable suite, also if the distribution has an older one.
    """
    _need_tools()
    own = None if newest else _unpack_own(pattern, into)
    return own or _unpack_unstable(pattern, into)


def clear(folder: Path) -> None:
    """Remove all that was unpacked into this folder."""
    shutil.rmtree(folder)
    folder.mkdir(mode=0o755)


def unpack_data(package: str, into: Path) -> None:
    """Unpack a package of the distribution's own sources that holds files to be read; without what it depends on."""
    _need_tools()
    with tempfile.TemporaryDirectory(prefix="claimjobs-apt-") as state:
        apt = Apt(Path(state))
        apt.prepare()
        subprocess.run(["dpkg", "-x", apt.download_alone(package), into], check=True)
    into.chmod(0o755)


def _need_tools() -> None:
    for tool in ("apt-get", "dpkg"):
        if not shutil.which(tool):
            raise Unavailable(f"this machine has no {tool}, so no package can be had: {NEXT_STEP}")


def _unpack_own(pattern: str, into: Path) -> str | None:
    """From the distribution's own sources, where it has such a package."""
    return _unpack(None, pattern, into)


def _unpack_unstable(pattern: str, into: Path) -> str:
    """From Debian's unstable suite, at the mirror that this machine uses anyway."""
    origin = _unpack(_unstable(pattern), pattern, into)
    if not origin:
        raise Unavailable(f"Debian's unstable suite has no package {pattern} for this machine: {NEXT_STEP}")
    return origin


def _unstable(pattern: str) -> str:
    system = platform.freedesktop_os_release()
    mirror = debian_mirror(machine_repositories(), system.get("VERSION_CODENAME", "sid"))
    if system["ID"] != "debian" or mirror is None:
        raise Unavailable(f"the apt sources of this {system['ID']} have no package {pattern}: {NEXT_STEP}")
    if not DEBIAN_KEYRING.exists():
        raise Unavailable(f"{DEBIAN_KEYRING} is missing: `apt-get install debian-archive-keyring`, or {NEXT_STEP}")
    return f"deb [signed-by={DEBIAN_KEYRING}] {mirror} unstable main\n"


def _unpack(sources: str | None, pattern: str, into: Path) -> str | None:
    with tempfile.TemporaryDirectory(prefix="claimjobs-apt-") as state:
        apt = Apt(Path(state), sources)
        apt.prepare()
        package = apt.newest(pattern)
        if package is None:
            return None
        for archive in apt.download(package):
            subprocess.run(["dpkg", "-x", archive, into], check=True)
    into.chmod(0o755)  # dpkg gave it the mode that the last package has for /
    suite = "Debian's unstable suite" if sources else "the distribution's own sources"
    return f"package {package} of {suite}"
