"""A queue as one page for a browser, read-only: made on the server, with plots as SVG, without any script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from claimjobs.admin.overview import COUNTED_STATES, Backlog, History, Overview, outlook
from claimjobs.instants import age
from claimjobs.key_text import key_in_message, key_text, visible
from claimjobs.metrics.backlog_reader import BacklogReader
from claimjobs.metrics.http_server import answer

REFRESH_SECONDS: Final = 5
"""Seconds after which a browser loads the page again."""
CHARACTERS_SHOWN: Final = 200
"""Characters of a text that are shown."""
MOST_OWNERS: Final = 100
OWNERS: Final = ("owner", "host:pid", "holds", "heartbeat", "")
KEYS: Final = ("key", "holds", "its turn")
FAILED: Final = ("failed job", "failures", "next try", "last error")
"""The titles of the rows below, which `claimjobs watch` shows, too."""
WIDTH, HEIGHT = 600, 80
"""The size of a plot."""
STYLE: Final = """\
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; }
th, td { padding: 0.15rem 1rem 0.15rem 0; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; max-width: 600px; height: 80px; border-bottom: 1px solid gray; }
figure { margin: 0 0 1rem; }
polyline { fill: none; stroke: currentColor; stroke-width: 1.5; }
.warning { font-weight: bold; color: #b45309; }
footer { color: gray; }
"""


def owner_rows(seen: Overview, most: int) -> Iterator[tuple[object, ...]]:
    """The first owners, dead ones before others."""
    for owner in sorted(seen.owners, key=lambda owner: (not owner.dead, owner.id))[:most]:
        yield owner.id, f"{owner.host}:{owner.pid}", f"{owner.jobs:,}", f"{age(owner.silence)} ago", owner.life


def key_rows(seen: Overview, most: int | None = None) -> Iterator[tuple[object, ...]]:
    """The first keys of `per_key` that wait."""
    return ((key_in_message(key.key), f"{key.jobs:,}", key.when) for key in seen.keys[:most])


def failed_rows(seen: Overview, retrying: int | None = None, dead: int | None = None) -> Iterator[tuple[object, ...]]:
    """Rows for `retrying` jobs that will be tried again, and for `dead` ones; None: for all that were read.

    A key is shown as a shell reads it, because a command or an answer gets it from there.
    """
    jobs = [*((job, job.when) for job in seen.retrying[:retrying]), *((job, "dead") for job in seen.dead[:dead])]
    for job, when in jobs:
        yield shlex.quote(visible(key_text(job.key))), "" if job.failures is None else job.failures, when, job.error


class PageReader(BacklogReader):
    """Reads what the page shows, now and then, and keeps the last readings for its plots."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.history = History()
        self.seen: Overview | None = None

    def _read_now(self) -> Backlog:
        self.seen = self._queue.overview(self._limit)
        self.history.add(self.seen)
        return self.seen.backlog


def queue_pages(reader: PageReader) -> dict[str, WSGIApplication]:
    """The page and its style, by their paths."""

    def page(_environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        return answer(start, "".join(_html(reader, reader.latest().error)), kind="text/html")

    def style(_environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        return answer(start, STYLE, kind="text/css")

    return {"/": page, "/style.css": style}


# --- the page ------------------------------------------------------------------------------------------------


def _html(reader: PageReader, error: str | None) -> Iterator[str]:
    title, seen, history = _text(reader.table), reader.seen, reader.history
    yield (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title} - claimjobs</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">\n<link rel="stylesheet" href="style.css">\n</head>\n'
        f"<body>\n<h1>{title}</h1>\n"
    )
    warnings = [] if error is None else [f"The table cannot be read: {error}"]
    if seen is not None and seen.paused is not None:
        warnings.append(f"Paused for {age(seen.paused)}{f': {seen.pause_reason}' if seen.pause_reason else ''}")
    elif seen is not None and not seen.has_consumers:
        warnings.append("No consumer is running")
    yield from (f'<p class="warning">{_text(warning)}</p>\n' for warning in warnings)
    if seen is not None:
        yield f"<p>{_text(', '.join(outlook(seen, history)))}; {seen.now:%Y-%m-%d %H:%M:%S} UTC</p>\n"
        states = ((state, seen.count(state), history.shown_change(state)) for state in COUNTED_STATES)
        yield _table("", ("state", "jobs", "change/s"), states)
        yield from (_plot(state, history.counts(state)) for state in COUNTED_STATES)
        yield _table("Failed jobs", FAILED, failed_rows(seen))
        yield _table("Owners", OWNERS, owner_rows(seen, MOST_OWNERS))
        if len(seen.owners) > MOST_OWNERS:
            yield f"<p>{len(seen.owners) - MOST_OWNERS:,} more owners</p>\n"
        yield _table("Keys that wait", KEYS, key_rows(seen))
    yield f'<footer>loaded again every {REFRESH_SECONDS} s; <a href="metrics">metrics</a></footer>\n</body>\n</html>\n'


def _table(heading: str, titles: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    above = f"<h2>{heading}</h2>\n" if heading else ""
    return f"{above}<table>\n<tr>{head}</tr>\n{lines}</table>\n" if lines else ""


def _cell(value: object) -> str:
    text = _text(value)
    is_number = re.fullmatch(r"[+-]?[\d,.]+\+?", text)
    return f'<td class="number">{text}</td>' if is_number else f"<td>{text}</td>"


def _text(value: object) -> str:
    """A text of any origin, on one line, cut, and escaped."""
    shown = visible(" ".join(str(value).split()))
    return escape(shown if len(shown) <= CHARACTERS_SHOWN else f"{shown[:CHARACTERS_SHOWN]}…")


def _plot(state: str, counts: Sequence[tuple[datetime, int]]) -> str:
    if len(counts) < 2:
        return ""
    (begin, _), (end, _) = counts[0], counts[-1]
    span, most = (end - begin).total_seconds() or 1.0, max(1, *(jobs for _, jobs in counts))
    points = " ".join(
        f"{WIDTH * (at - begin).total_seconds() / span:.1f},{HEIGHT - (HEIGHT - 2) * jobs / most:.1f}"
        for at, jobs in counts
    )
    words = f"{state}, the last {age(span)}: at most {most:,}"
    return (
        f'<figure><figcaption>{words}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{words}"><polyline points="{points}"/></svg></figure>\n'
    )
