"""The only way to the standard streams: lines for a person, in which foreign text is visible, and data for programs."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

import click

from claimjobs.cli.next_step import completed
from claimjobs.database.masking import masked
from claimjobs.key_text import visible, visible_lines
from claimjobs.log_events import COMMAND_FAILED, COMMAND_SAYS
from claimjobs.log_records import JsonFormatter

if TYPE_CHECKING:
    from rich.console import Console

URLS = "claimjobs.urls"
"""The key of the given URLs in `meta`, which all contexts of a command line share."""
LOG_FORMAT = "claimjobs.log_format"
"""The key of `--log-format` there."""


def data(text: object, *, end: bool = True) -> None:
    """Print what programs read, exactly as it is: JSON, a number, SQL for a file. `end`: with the end of a line."""
    click.echo(text, nl=end)


def show(*lines: str, err: bool = False) -> None:
    """Print lines for a person. Whatever is in one, it stays one line, and does nothing to the terminal."""
    click.echo("\n".join(map(visible, lines)), err=err)


def show_sql(text: str) -> None:
    """Print SQL: exactly as it is, but on a terminal with foreign text made visible."""
    show(*text.rstrip("\n").split("\n")) if on_terminal() else data(text.rstrip("\n"))


def ask(question: str) -> None:
    """Ask a person. Raises Abort after a no."""
    click.confirm(visible(question), abort=True, err=True)


def terminal(*, stderr: bool = False) -> Console:
    """A terminal for tables and bars. What is printed there is never read as markup, such as `[/red]`."""
    from rich.console import Console  # noqa: PLC0415 - most commands need none

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def say(message: str) -> None:
    """Print a message on standard error, without secrets; in the format of the log. Standard output is for data.

    Its first line is marked as ours. Further lines are indented.
    """
    context = click.get_current_context(silent=True)
    text = masked(message, urls_of(context))
    record = _record("INFO", text, {"event": COMMAND_SAYS}) if _as_json(context) else None
    click.echo(record or visible_lines(f"claimjobs: {text}").lstrip(" "), err=True)


def say_error(message: str, error: BaseException, *, verbose: bool) -> None:
    """Print an error: as a message, or as a record of the log where that is JSON. `verbose`: with its traceback."""
    context = click.get_current_context(silent=True)
    trace = masked("".join(traceback.format_exception(error)), urls_of(context)) if verbose else ""
    if _as_json(context):
        text = masked(message, urls_of(context))
        click.echo(_record("ERROR", text, {"event": COMMAND_FAILED, "error": text, "exc_text": trace}), err=True)
        return
    if trace:
        click.echo(visible_lines(trace), err=True)
    say(message)


def _as_json(context: click.Context | None) -> bool:
    """Whether all of standard error is in the format of the log, and that is JSON."""
    return context is not None and context.meta.get(LOG_FORMAT) == "json"


def _record(level: str, message: str, fields: dict[str, str]) -> str:
    record = {"name": "claimjobs.cli", "levelname": level, "msg": message, **fields}
    return JsonFormatter().format(logging.makeLogRecord(record))


def write_nowhere(stream: IO[Any]) -> None:
    """Discard this output: what Python has buffered and what is written later, without an error."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextmanager
def log_on_stderr() -> Iterator[None]:
    """Print the library's log messages while the block lasts."""
    log, handler = logging.getLogger("claimjobs"), _Saying()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(completed(record.getMessage()))


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def asks() -> bool:
    """Whether a person can be asked: standard input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def number(count: int, thing: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def age(seconds: float) -> str:
    """`3 s`, `2 min 3 s`, `5 h 2 min`, `12 d 4 h`: the two largest units."""
    rest = round(seconds)
    counts: list[tuple[int, str]] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or counts:
            counts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in counts[:2] if count) or "0 s"


def urls_of(context: click.Context | None) -> list[str]:
    """The given URLs: their secrets must not be shown."""
    return [] if context is None else list(context.meta.get(URLS, ()))
