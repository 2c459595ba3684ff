"""Log records on standard error: as lines of text, or as one JSON object a line."""

from __future__ import annotations

import logging
from typing import Literal

import click

from claimjobs.cli.console import LOG_FORMAT
from claimjobs.cli.options import AnyCommand
from claimjobs.log_records import JsonFormatter

LogFormat = Literal["text", "json"]


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
    """Write the records of all loggers on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
