"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]


def url_option(command: Command) -> Command:
    """`--url`, or CLAIMJOBS_URL; without either, the embedded Postgres."""
    return click.option(
        "--url",
        envvar="CLAIMJOBS_URL",
        metavar="URL",
        help="mysql://user:password@host/database or postgresql://...; also CLAIMJOBS_URL. "
        "Without one: an embedded Postgres.",
    )(command)


def table_option(command: Command) -> Command:
    """`--table`: a name, or where in Python a Table or mapped class is found."""
    return click.option(
        "--table",
        default="jobs",
        show_default=True,
        metavar="NAME | MODULE:ATTRIBUTE",
        help="The table of jobs: its name, or where its Table or mapped class is found in Python.",
    )(command)
