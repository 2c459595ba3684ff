"""Server programs that were brought to this machine once, outside the repository and outside the system."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from servers import unprivileged
from servers.errors import Unavailable

ROOTS_CACHE = Path("/var/cache/claimjobs")  # root's own ~/.cache is closed to the account that runs servers


def folder() -> Path:
    """$CLAIMJOBS_CACHE, else the user's cache folder, else for root one that everybody can reach."""
    chosen = Path(os.environ.get("CLAIMJOBS_CACHE") or _default()).absolute()
    if not chosen.is_dir():
        chosen.mkdir(parents=True, exist_ok=True)
        chosen.chmod(0o755)  # whatever the umask says
    if not unprivileged.can_reach(chosen):
        raise Unavailable(
            f"the account {unprivileged.ACCOUNT}, which runs servers for root, cannot reach {chosen}: "
            f"set CLAIMJOBS_CACHE to a folder that everybody can enter"
        )
    return chosen


def _default() -> Path:
    if unprivileged.account():
        return ROOTS_CACHE
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claimjobs"


def filled(name: str) -> Path | None:
    """The entry of this name, or None: an entry that is there is complete."""
    entry = folder() / name
    return entry if entry.is_dir() else None


def fill(name: str, make: Callable[[Path], None]) -> Path:
    """The entry of this name, made by one process while others wait; `make` fills an empty folder."""
    with _locked(folder() / f"{name}.lock"):
        return filled(name) or _make(folder() / name, make)


def _make(entry: Path, make: Callable[[Path], None]) -> Path:
    for stale in entry.parent.glob(f".{entry.name}-*"):  # of a process that was killed: the lock is ours now
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=entry.parent) as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        made.chmod(0o755)
        make(made)
        return made.rename(entry)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
