"""`claimjobs list`, `show` and `cancel`: jobs in any state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import click

from claimjobs.admin.job_list import JobEntry
from claimjobs.cli import exits
from claimjobs.cli.console import data, say
from claimjobs.cli.dead import block_of, json_option, keys_of, line_of, where_option
from claimjobs.cli.options import AT_LEAST_1
from claimjobs.cli.queue_options import Target, queue_options
from claimjobs.key_text import key_in_message, plain
from claimjobs.queue.queue import Queue
from claimjobs.table.columns import STATES

FIRST: Final = 20
"""How many jobs are listed if nothing is said."""

ids = click.argument("ids", nargs=-1, required=True, metavar="ID...")


@click.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@where_option
@click.option("--limit", type=AT_LEAST_1, default=FIRST, metavar="N", help="The first N of them, by their keys.")
@json_option
@queue_options
def list_(target: Target, state: str | None, where: str | None, limit: int, as_json: bool) -> None:
    """List jobs in the order of their keys: key, state, failed attempts and last error, separated by tabs.

    Each job is one line, as of `claimjobs dead list`. With --json every column is written, and `claimjobs_state`; with
    --side-car also the columns of its entry there.

    \b
    Examples:
      claimjobs list
      claimjobs list --state claimed --limit 100
      claimjobs list --where "last_error like 'Timeout%'" --json
    """
    with target.queue() as queue:
        found = 0
        for entry in queue.jobs.list(where, state=state, limit=limit):
            found += 1
            data(_json(entry) if as_json else _line(queue, entry))
    if not found:
        say(f"no such job in {queue.table.fullname}")
    elif found == limit:
        say(f"these are the first {limit}: --limit {10 * limit} lists more")


@click.command()
@ids
@json_option
@queue_options
@click.pass_context
def show(context: click.Context, target: Target, ids: tuple[str, ...], as_json: bool) -> None:
    """Show the state and every column of jobs. Write an ID of several columns as a line of CSV: eu,17.

    An ID that is not the key of a row is reported (exit code 5).

    \b
    Examples:
      claimjobs show 1
      claimjobs show --json 1 2
    """
    with target.queue() as queue:
        keys = keys_of(queue.roles.key, ids)
        found = queue.jobs.show(keys)
    texts = map(_json, found) if as_json else (block_of(entry.columns) for entry in found)
    data(("\n" if as_json else "\n\n").join(texts), end=bool(found))
    there = {entry.job.key for entry in found}
    if missing := [key for key in keys if key not in there]:
        say(f"no row of {queue.table.fullname}: {', '.join(map(key_in_message, missing))}")
        context.exit(exits.INPUT)


@click.command()
@ids
@click.option("--reason", metavar="TEXT", help="Why: it is stored with the job.")
@json_option
@queue_options
@click.pass_context
def cancel(context: click.Context, target: Target, ids: tuple[str, ...], reason: str | None, as_json: bool) -> None:
    """Make jobs dead that wait or are claimed, and print how many.

    They stay in the table, and `claimjobs dead` retries or drops them. A handler that is at such a job can see it in
    `job.cancelled` within 2 s, and its outcome is refused. Tasks of --concurrency are cancelled. A job in an open
    transaction (--hold transaction) is not cancelled. An ID whose job was not cancelled is reported (exit code 5).

    \b
    Examples:
      claimjobs cancel 17 18
      claimjobs cancel 17 --reason "the customer has left"
    """
    with target.queue() as queue:
        keys = keys_of(queue.roles.key, ids)
        cancelled = set(queue.cancel(keys, reason))
        left = [key for key in keys if key not in cancelled]
        states = {entry.job.key: entry.state for entry in queue.jobs.show(left)}
    data(json.dumps({"cancelled": len(cancelled)}) if as_json else len(cancelled))
    for key in left:
        why = f"it is {states[key]}" if key in states else f"no row of {queue.table.fullname} has this key"
        if states.get(key) in ("unclaimed", "claimed"):
            why = "an open transaction holds it; try again when that has ended"
        say(f"{key_in_message(key)} was not cancelled: {why}")
    if left:
        context.exit(exits.INPUT)


def _line(queue: Queue, entry: JobEntry) -> str:
    """One line for a job."""
    record: Mapping[str, Any] = entry.record or {}
    attempts, error = (queue.roles.value_of(role, record, "") for role in ("attempts", "last_error"))
    return line_of(key_in_message(entry.job.key), entry.state or "?", attempts, error=error)


def _json(entry: JobEntry) -> str:
    columns: dict[str, Any] = entry.columns
    return json.dumps(columns, default=plain)
