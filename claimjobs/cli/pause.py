"""`claimjobs pause` and `claimjobs resume`: what an operator tells all consumers of a table."""

from __future__ import annotations

from typing import Final

import click

from claimjobs.cli.console import show
from claimjobs.cli.next_step import command
from claimjobs.cli.options import queue_for, url_option
from claimjobs.cli.queue_options import queue_options
from claimjobs.queue.map_file import Described

MOST: Final = 1_000
"""The most characters of a reason."""


@click.command()
@click.option("--reason", metavar="TEXT", help="Why: `claimjobs status` shows it.")
@url_option
@queue_options
def pause(reason: str | None, url: str | None, described: Described) -> None:
    """Let no consumer claim from this table, on any machine, until `claimjobs resume`.

    It is stored in the database, and outlasts restarts. Consumers notice it within a fifth of their lease (2 s). They
    finish the batch in hand, and wait; jobs can still be enqueued. A run with --drain waits, too; --idle and --duration
    end it. The pause is for the whole table, whatever the predicate of a queue. If it is paused already, only the
    reason is replaced.

    \b
    Examples:
      claimjobs pause --reason "the mail server is down"
      claimjobs pause --table emails
    """
    reason = None if reason is None else " ".join(reason.split())  # one line of `status`
    if reason is not None and len(reason) > MOST:
        raise click.BadParameter(f"it has {len(reason):,} characters: give at most {MOST:,}", param_hint="--reason")
    with queue_for(url, described) as queue:
        queue.pause(reason)
        show(f"{queue.table.fullname} is paused: {command('resume')} ends that")


@click.command()
@url_option
@queue_options
def resume(url: str | None, described: Described) -> None:
    """End a pause. Waiting consumers go on at once.

    \b
    Examples:
      claimjobs resume
      claimjobs resume --table emails
    """
    with queue_for(url, described) as queue:
        was_paused = queue.resume()
        show(f"{queue.table.fullname} {'is not paused any more' if was_paused else 'was not paused'}")
