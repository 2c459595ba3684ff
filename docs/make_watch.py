"""Make the pictures of `claimjobs watch`, of a real run on the embedded Postgres: `python -m docs.make_watch`.

Jobs fail, customers have a limit, and the consumers are stopped at the end, so that there is something to see. It takes
half a minute. Where a Chromium is installed, it makes that of the page, too.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from rich.console import Console

from claimjobs import PerKey, Queue, job_table, key_tables, make, tables_for
from claimjobs.cli.watch import screen
from claimjobs.embedded.server import temporary
from claimjobs.metrics.http_server import serving
from claimjobs.metrics.page import PageReader, queue_pages
from docs import browser

IMAGES: Final = Path(__file__).with_name("images")
SIZES: Final = ((80, 24), (200, 60))
READINGS: Final = 90
MAILS: Final = job_table(
    "emails",
    sa.MetaData(),
    sa.Column("address", sa.String(200), nullable=False),
    sa.Column("customer", sa.Integer, nullable=False),
)
OF: Final = MAILS.c
sa.Index("emails_by_customer", OF.status, OF.customer, OF.priority, OF.id, OF.run_at, OF.suspect)
FEW: Final = PerKey("customer", at_most=2)
HANDLER: Final = """
import random, time

def deliver(job):
    time.sleep(0.02)
    if job["address"].startswith("user37@"):
        raise OSError("550 no such mailbox")
    if random.random() < 0.003:
        raise TimeoutError("mail.example.org does not answer")
"""


def main() -> None:
    """Draw a run, and write the pictures of its last moment."""
    with temporary() as url, Queue(url, MAILS, per_key=FEW) as queue, _consumers(url) as run:
        reader = PageReader(queue, every=0)
        history = reader.history
        for number in range(READINGS):
            if number % 30 < 12 or number > READINGS - 15:
                queue.enqueue({"address": f"user{n}@example.org", "customer": _customer(n)} for n in range(160))
            if number == READINGS - 1:
                os.killpg(run.pid, signal.SIGSTOP)
            reader.latest()
            time.sleep(0.3)
        seen = queue.overview()
        for width, height in SIZES:
            console = Console(record=True, width=width, height=height, file=io.StringIO(), force_terminal=True)
            console.print(screen(seen, history, (width, height)), end="")
            picture = IMAGES / f"watch-{width}x{height}.svg"
            console.save_svg(str(picture), title="claimjobs watch --table emails")
            picture.write_text(_without_fonts(picture.read_text(encoding="utf-8")), encoding="utf-8")
        if browser.PROGRAM is not None:
            with serving("127.0.0.1", 0, queue_pages(reader)) as address:
                browser.picture(f"{address}/", IMAGES / "page.png")
        queue.engine.dispose()


@contextmanager
def _consumers(url: str) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "post.py").write_text(HANDLER)
        words = (
            "-m",
            "claimjobs",
            "start-processing",
            "post:deliver",
            "--table",
            "emails",
            "--consumers",
            "6",
            "--quiet",
        )
        more = ("--batch-size", "20", "--retry-attempts", "3", "--per-key", "customer", "--per-key-at-most", "2")
        environment = {**os.environ, "CLAIMJOBS_URL": url, "PYTHONPATH": folder}
        with Queue(url, MAILS) as queue:
            make(queue.engine, tables_for(MAILS))
            make(queue.engine, key_tables(queue.engine, MAILS, ["customer"]))
            queue.engine.dispose()
        run = subprocess.Popen((sys.executable, *words, *more), env=environment, start_new_session=True)  # noqa: S603
        try:
            yield run
        finally:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def _customer(number: int) -> int:
    """One customer has a quarter of the mails."""
    return 7 if number % 4 == 0 else 100 + number % 60


def _without_fonts(text: str) -> str:
    """Rich names fonts on the web: a picture loads nothing from elsewhere."""
    head, _, rest = text.partition("@font-face")
    if not rest:
        return text
    while "@font-face" in rest:
        rest = rest.partition("@font-face")[2]
    return head + rest.partition("}")[2]


if __name__ == "__main__":
    main()
