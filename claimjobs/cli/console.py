"""The only way to the standard streams: lines for a person, in which foreign text is visible, and data for programs."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

import click

from claimjobs.database.masking import masked
from claimjobs.key_text import visible, visible_lines
from claimjobs.log_events import COMMAND_FAILED, COMMAND_SAYS
from claimjobs.log_records import JsonFormatter, json_value

if TYPE_CHECKING:
    from rich.console import Console

# Keys of `meta`, which all contexts of a command line share.
URLS = "claimjobs.urls"
"""The given URLs, whose secrets are in no message."""
LOG_FORMAT = "claimjobs.log_format"

# --- the streams ---------------------------------------------------------------------------------------------


@contextmanager
def usable_streams() -> Iterator[None]:
    """Let the standard streams make no error before or after a `with` block."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it is closed, and a connection would get its number
            # Standard input is opened for writing: to read it is an error then, instead of an empty file.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(nowhere, True)  # for the processes of a run
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # Python would try again at its end, and fail
                write_nowhere(stream)


def write_nowhere(stream: IO[Any]) -> None:
    """Discard this output: what Python has buffered and what is written later, without an error."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


# --- standard output -----------------------------------------------------------------------------------------


def data(text: object) -> None:
    """Print what programs read, exactly as it is: JSON, a number, SQL for a file."""
    click.echo(text)


def json_line(found: Mapping[str, Any]) -> str:
    """A JSON object on one line. What JSON has not is a text: instants, bytes in base64, NaN and Infinity."""
    return json.dumps(json_value(found))


def show(*lines: str, err: bool = False) -> None:
    """Print lines for a person. Whatever is in one, it stays one line, and does nothing to the terminal."""
    click.echo("\n".join(map(visible, lines)), err=err)


def show_sql(text: str) -> None:
    """Print SQL: exactly as it is, but on a terminal with foreign text made visible."""
    show(*text.rstrip("\n").split("\n")) if on_terminal() else data(text.rstrip("\n"))


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def can_redraw(console: Console) -> bool:
    """Whether lines can be drawn again on a console: it is a terminal that can move its cursor (not `TERM=dumb`)."""
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


# --- standard error ------------------------------------------------------------------------------------------


def asks() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> None:
    """Ask a person. Raises Abort after a no."""
    click.confirm(visible(question), abort=True, err=True)


def need_yes(effect: str) -> None:
    """Raise UsageError where nobody can be asked: standard input or standard error is no terminal."""
    if not asks():
        raise click.UsageError(f"{effect}, and nobody can be asked here: give --yes as well")


def say(message: str, error: BaseException | None = None, *, verbose: bool = False) -> None:
    """Print a message on standard error, without secrets; in the format of the log.

    Its first line is marked as ours. Further lines are indented. `error`: what the message is about; `verbose`: with
    its traceback.
    """
    context = click.get_current_context(silent=True)
    meta = {} if context is None else context.meta
    text = masked(message, meta.get(URLS, ()))
    trace = masked("".join(traceback.format_exception(error)), meta.get(URLS, ())) if verbose else ""
    if meta.get(LOG_FORMAT) == "json":
        fields = {"name": "claimjobs.cli", "levelname": "INFO", "msg": text, "event": COMMAND_SAYS}
        if error is not None:
            fields |= {"levelname": "ERROR", "event": COMMAND_FAILED, "error": text, "exc_text": trace}
        click.echo(JsonFormatter().format(logging.makeLogRecord(fields)), err=True)
        return
    if trace:
        click.echo(visible_lines(trace), err=True)
    click.echo(visible_lines(f"claimjobs: {text}").lstrip(" "), err=True)


# --- the log -------------------------------------------------------------------------------------------------

# Its pool logs an error with a traceback. What matters of it is raised, and told as one line.
logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextmanager
def log_as_messages() -> Iterator[None]:
    """Print the library's log on standard error, as messages, while the block lasts."""
    log, handler = logging.getLogger("claimjobs"), _Saying()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


# --- words ---------------------------------------------------------------------------------------------------


def number(count: int, thing: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
