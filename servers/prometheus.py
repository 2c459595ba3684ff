"""Prometheus from the distribution's package, unpacked into the cache as a database server is; nothing is installed."""

import shutil
import sys
from pathlib import Path

from servers import cache, packages

PACKAGE = "prometheus"


def program(name: str) -> Path:
    """The path of `prometheus` or `promtool`: the installed one, else that of the package. Raises Unavailable."""
    installed = shutil.which(name)
    return Path(installed) if installed else cache.fill(PACKAGE, _unpack) / "usr/bin" / name


def _unpack(into: Path) -> None:
    print(f"fetching {PACKAGE} into {into.parent.parent}, once ...", file=sys.stderr, flush=True)
    packages.unpack_data(PACKAGE, into)  # its programs need nothing but the C library
