"""Run a program out of a folder that packages were unpacked into, with the libraries that lie beside it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from servers.errors import Unavailable

LIBRARIES = ("usr/lib/*-linux-gnu*", "lib/*-linux-gnu*", "usr/lib64", "lib64", "usr/lib", "lib")
SYSTEM = Path("/")


@dataclass(frozen=True)
class Program:
    """A server's program below `root`: the file system's own, or a folder of unpacked packages."""

    path: Path
    root: Path
    origin: str

    @property
    def home(self) -> Path:
        """The folder with `sbin` and `share`, as a server's --basedir wants it."""
        return self.path.parent.parent

    def command(self) -> list[str]:
        """Through the loader in `root`: a private libc needs it, and a security profile bound to the
        path of an installed server does not apply (AppArmor would close our data folder to it)."""
        libraries = [] if self.root == SYSTEM else ["--library-path", ":".join(map(str, _libraries(self.root)))]
        return [str(_loader(self.root)), *libraries, str(self.path)]

    def version_line(self) -> str:
        asked = subprocess.run([*self.command(), "--version"], capture_output=True, text=True, check=False)
        if asked.returncode:
            raise Unavailable(f"{self.path} --version failed: {asked.stderr.strip()}")
        return asked.stdout.strip()


def _libraries(root: Path) -> list[Path]:
    return [found for pattern in LIBRARIES for found in sorted(root.glob(pattern)) if found.is_dir()]


def _loader(root: Path) -> Path:
    """The loader itself: the links to it are absolute, so they lead out of an unpacked folder."""
    for library in _libraries(root):
        for found in sorted(library.glob("ld-linux*.so.*")):
            if not found.is_symlink():
                return found
    raise Unavailable(f"no dynamic loader below {root}: only Linux with glibc can run servers without Docker")
