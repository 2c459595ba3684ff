"""`claimjobs dead`: list, retry or drop the jobs that are out of attempts."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click
import sqlalchemy as sa

from claimjobs.cli import exits
from claimjobs.cli.console import ask, command, data, need_yes, number, on_terminal, say
from claimjobs.cli.options import AT_LEAST_1, AnyCommand, options_before, with_options
from claimjobs.cli.queue_options import Target, queue_options
from claimjobs.cli.values import value_for
from claimjobs.database.connect import shown
from claimjobs.dialects.types import Instant
from claimjobs.job import Job
from claimjobs.key_text import key_in_message, plain, visible
from claimjobs.queue.queue import Queue

where_option = click.option("--where", metavar="SQL", help="Only jobs for which this holds; SQL as after WHERE.")
limit_option = click.option("--limit", type=AT_LEAST_1, metavar="N", help="The first N of them, by their keys.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def choice_options(command: AnyCommand) -> AnyCommand:
    """Add IDS, `--where`, `--all` and `--limit`."""
    ids = click.argument("ids", nargs=-1, metavar="[ID...]")
    every = click.option("--all", "everything", is_flag=True, help="All dead jobs of the table.")
    return with_options(command, ids, where_option, every, limit_option)


@click.group()
@options_before
def dead() -> None:
    """List, retry or drop dead jobs.

    A job is dead when it has failed as often as it may, or when its handler allowed no other try. It stays in the
    table until you retry or drop it.
    """


# --- showing -------------------------------------------------------------------------------------------------


@dead.command("list")
@where_option
@limit_option
@json_option
@queue_options
def list_(target: Target, where: str | None, limit: int | None, as_json: bool) -> None:
    """List the dead jobs in the order of their keys: key, failed attempts and last error, separated by tabs.

    Each job is one line: what cannot be printed is written as \\n or \\x1b, and a key with such a character in quotes.
    With --json nothing is changed: every column of each job, instants as 2026-01-31T12:00:00+00:00, bytes in base64.

    \b
    Examples:
      claimjobs dead list
      claimjobs dead list --limit 10 --json
      claimjobs dead list --where "last_error like 'Timeout%'" | cut -f 1
    """
    with target.queue() as queue:
        found = 0
        for job in queue.dead.list(where, limit=limit):
            found += 1
            data(_json(job) if as_json else _line(queue, job))
    if not found:
        say(f"no dead job in {queue.table.fullname}" + (" for which this holds" if where else ""))


def _line(queue: Queue, job: Job) -> str:
    attempts, error = (queue.roles.value_of(role, job, "") for role in ("attempts", "last_error"))
    return line_of(key_in_message(job.key), attempts, error=error)


def line_of(*fields: Any, error: Any) -> str:
    """One line for a job, cut to the width of a terminal."""
    line = "\t".join((*map(str, fields), visible(" ".join(str(error).split()))))
    return line.expandtabs()[: shutil.get_terminal_size().columns] if on_terminal() else line


def block_of(columns: Mapping[str, Any]) -> str:
    """One line for each column. The lines of a long text are aligned."""
    texts = {visible(name): "" if value is None else plain(value) for name, value in columns.items()}
    widest = max(map(len, texts))
    indent = "\n" + " " * (widest + 2)
    lines = {name: indent.join(map(visible, text.rstrip("\n").split("\n"))) for name, text in texts.items()}
    return "\n".join(f"{name:<{widest}}  {text}".rstrip() for name, text in lines.items())


def _json(job: Job) -> str:
    return json.dumps(_shown(job), default=plain)


def _shown(job: Job) -> dict[str, Any]:
    """The value of each column, or why it cannot be read."""
    return {name: job.shown(name) for name in job}


# --- retrying and dropping -----------------------------------------------------------------------------------


@dead.command("retry")
@choice_options
@json_option
@queue_options
@click.pass_context
def retry_jobs(context: click.Context, /, target: Target, as_json: bool, **chosen: Any) -> None:
    """Make dead jobs due now, with all their attempts, and print how many.

    Their last error stays until the next one. They are committed in chunks of 1,000: chunks that were committed before
    an interruption stay, and the same command goes on from there. An ID that is not the key of a dead job is reported
    (exit code 5).

    \b
    Examples:
      claimjobs dead retry --all
      claimjobs dead retry --where "last_error like 'Timeout%'" --limit 10
    """
    _must_be_one_choice(**chosen)
    with target.queue() as queue:
        given, missing = _choice(queue, **chosen)
        retried = queue.dead.retry(**given)
    data(json.dumps({"retried": retried}) if as_json else retried)
    _report_missing(context, missing)


@dead.command()
@choice_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@queue_options
@click.pass_context
def drop(context: click.Context, /, target: Target, yes: bool, as_json: bool, **chosen: Any) -> None:
    """Delete dead jobs, after a question, and print how many.

    They are committed in chunks of 1,000. Without a terminal --yes is needed. An ID that is not the key of a dead job
    is reported (exit code 5).

    With --side-car nothing is deleted: the rows stay in your table, and the side-car calls them done, so that they are
    not executed again.

    \b
    Examples:
      claimjobs dead drop --all --yes
      claimjobs dead drop --where "last_error like '%bounced%'" --yes
    """
    _must_be_one_choice(**chosen)
    with target.queue() as queue:
        given, missing = _choice(queue, **chosen)
        keys, limit = given["keys"], given["limit"]
        count = queue.dead.count(given["where"]) if keys is None else len(keys) - len(missing)
        if not yes and (count := min(count, limit or count)):
            jobs = f"{number(count, 'dead job')} of {queue.table.fullname}"
            need_yes(f"this would drop {jobs}")
            ask(f"Drop {jobs} in {shown(queue.engine.url)}?")
        dropped = queue.dead.drop(**given)
        if queue.settings.side_car and dropped:
            say(f"the rows of {queue.table.fullname} stay; {queue.roles.name} says that they are done")
    data(json.dumps({"dropped": dropped}) if as_json else dropped)
    _report_missing(context, missing)


def _must_be_one_choice(ids: tuple[str, ...], where: str | None, everything: bool, limit: int | None) -> None:
    """Raises UsageError unless exactly one of IDs, `--where` and `--all` is given."""
    if sum((bool(ids), where is not None, everything)) != 1:
        raise click.UsageError("say which dead jobs: give either IDs, or --where SQL, or --all")
    if ids and limit:
        raise click.UsageError("--limit goes with --where or --all, not with IDs")


def _choice(queue: Queue, ids: tuple[str, ...], **narrower: Any) -> tuple[dict[str, Any], list[Any]]:
    """The arguments for `retry` and `drop`, and the keys that are those of no dead job. Raises BadParameter."""
    keys = keys_of(queue.roles.key, ids)
    given = {"keys": keys if ids else None, "where": narrower["where"], "limit": narrower["limit"]}
    return given, _missing(keys, queue.dead.show(keys))


def _missing(keys: list[Any], found: Iterable[Job]) -> list[Any]:
    there = {job.key for job in found}
    return [key for key in keys if key not in there]


def _report_missing(context: click.Context, missing: list[Any]) -> None:
    if missing:
        which = ", ".join(map(key_in_message, missing))
        say(f"no dead job: {which}: {command('dead list')} shows which are")
        context.exit(exits.INPUT)


# --- keys ----------------------------------------------------------------------------------------------------


def keys_of(columns: Sequence[sa.Column[Any]], texts: Iterable[str]) -> list[Any]:
    """Keys of jobs, each once. One of several columns is a line of CSV, such as `eu,17`. Raises BadParameter."""
    return list(dict.fromkeys(_key(columns, text) for text in texts))


def _key(columns: Sequence[sa.Column[Any]], text: str) -> Any:
    names = ", ".join(column.name for column in columns)
    no_key = f"{text!r} is no key of {columns[0].table.fullname} ({names})"
    fields = [text]
    if len(columns) > 1:
        with suppress(csv.Error):
            fields = next(csv.reader([text]), [])
    if len(fields) != len(columns):
        raise click.BadParameter(f"{no_key}: write its parts as {','.join(column.name.upper() for column in columns)}")
    try:
        parts = tuple(map(_part, columns, fields))
    except ValueError as error:
        raise click.BadParameter(f"{no_key}: {error}") from None
    return parts if len(parts) > 1 else parts[0]


def _part(column: sa.Column[Any], text: str) -> Any:
    """A part of a key. An instant is in UTC if no other zone is given."""
    if not isinstance(column.type, Instant):
        return value_for(column, text)
    found: datetime = value_for(sa.Column(column.name, sa.DateTime()), text)
    return found.replace(tzinfo=UTC)
