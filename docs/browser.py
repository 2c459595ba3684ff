"""A headless Chromium, if this machine has one: what it makes of a page, as HTML or as a picture."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
PROGRAM: Final = next(filter(None, map(shutil.which, NAMES)), None)
"""The path of the browser; None: there is none."""
SECONDS: Final = 120


def html_of(url: str) -> str:
    """The page as the browser holds it, after everything that it runs by itself."""
    return _run("--dump-dom", url)


def picture(url: str, file: Path, *, width: int = 1_000, height: int = 1_300) -> None:
    """Write a PNG of the page."""
    _run(f"--screenshot={file}", f"--window-size={width},{height}", url)


def _run(*words: str) -> str:
    if PROGRAM is None:
        raise FileNotFoundError(f"no browser is installed: one of {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as folder:
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}")
        ended = subprocess.run((PROGRAM, *options, *words), capture_output=True, timeout=SECONDS, check=True)  # noqa: S603
    return ended.stdout.decode()
