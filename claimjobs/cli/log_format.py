"""`--log-format`: the format of the log on standard error."""

from __future__ import annotations

import logging

import click

from claimjobs.cli.console import LOG_FORMAT
from claimjobs.cli.next_step import completed
from claimjobs.cli.options import AnyCommand
from claimjobs.log_records import LogFormat, stderr_handler


def log_format_option(command: AnyCommand) -> AnyCommand:
    """`--log-format`. An error that ends the command is written in this format, too."""
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        callback=_remember,
        help="The log on standard error: as text, or as one JSON object a line.",
    )(command)


def _remember(context: click.Context, _option: click.Parameter, log_format: LogFormat) -> LogFormat:
    context.meta[LOG_FORMAT] = log_format
    return log_format


def log_to_stderr(log_format: LogFormat) -> None:
    """Write the records of all loggers on standard error. The commands in them name the queue of this command."""
    handler = stderr_handler(log_format)
    handler.addFilter(complete)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def complete(record: logging.LogRecord) -> bool:
    """A filter of a handler: the commands in a record of ours name the queue of this command."""
    if record.name.startswith("claimjobs"):
        record.msg, record.args = completed(record.getMessage()), ()
        if isinstance(error := vars(record).get("error"), str):
            vars(record)["error"] = completed(error)
    return True
