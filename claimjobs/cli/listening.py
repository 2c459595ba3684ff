"""The options of commands that serve pages on a port."""

from __future__ import annotations

from collections.abc import Callable

import click

from claimjobs.cli.numbers import LARGEST_PORT, WholeNumber
from claimjobs.cli.options import AnyCommand
from claimjobs.metrics.http_server import LOOPBACK


def port_option(name: str, pages: str, *, required: bool = False) -> Callable[[AnyCommand], AnyCommand]:
    """An option for the port on which these pages are served."""
    words = f"Serve {pages} on this port; 0: any free one."
    return click.option(name, type=WholeNumber(0, LARGEST_PORT), metavar="PORT", required=required, help=words)


def bind_option(command: AnyCommand) -> AnyCommand:
    """`--bind`, the address of the ports of a command."""
    words = "The address to listen on; 0.0.0.0: all addresses of the machine."
    return click.option("--bind", default=LOOPBACK, show_default=True, metavar="ADDRESS", help=words)(command)
