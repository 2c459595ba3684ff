"""`claimjobs list`, `show` and `cancel`: jobs in any state; `claimjobs dead`: retry or drop dead ones."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import click
import sqlalchemy as sa

from claimjobs.admin.stored_jobs import StoredJob
from claimjobs.cli import exits
from claimjobs.cli.console import ask, data, json_line, need_yes, number, on_terminal, say
from claimjobs.cli.options import AT_LEAST_1, options_before, with_options
from claimjobs.cli.queue_options import Target, next_command, queue_options
from claimjobs.database.connect import shown
from claimjobs.key_text import key_in_message, plain, visible
from claimjobs.queue.queue import Queue
from claimjobs.table.columns import CLAIMED, DEAD, STATES, UNCLAIMED
from claimjobs.table.values import key_part

JOBS_LISTED: Final = 20
"""How many jobs are listed if nothing is said."""
COUNT_LIMIT: Final = 100_000
"""Jobs are counted up to this number: to count them all may take long."""
HEADER: Final = ("key", "state", "failures", "time (UTC)", "last error")

ids = click.argument("ids", nargs=-1, required=True, metavar="ID...")
where_option = click.option("--where", metavar="SQL", help="Only jobs for which this holds; SQL as after WHERE.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
choice_options = with_options(
    click.argument("ids", nargs=-1, metavar="[ID...]"),
    where_option,
    click.option("--all", "everything", is_flag=True, help="All dead jobs of the table."),
)


@click.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@where_option
@click.option("--limit", type=AT_LEAST_1, default=JOBS_LISTED, metavar="N", help="The first N of them, by their keys.")
@json_option
@queue_options
def list_(target: Target, state: str | None, where: str | None, limit: int, as_json: bool) -> None:
    """List jobs in the order of their keys: key, state, failed attempts, a time and the last error, separated by tabs.
    A terminal gets a line with these names, too.

    The time, in UTC, is that of the last change: since when the job is claimed, done or dead. Of a job that waits it is
    when it is due.

    Each job is one line: what cannot be printed is written as \\n or \\x1b, and a key with such a character in quotes.
    With --json nothing is changed: `claimjobs_state` and every column, instants as 2026-01-31T12:00:00+00:00, bytes in
    base64; with --side-car the columns of its entry there, in place of yours with the same names.

    \b
    Examples:
      claimjobs list
      claimjobs list --state claimed --limit 100
      claimjobs list --state dead --where "last_error like 'Timeout%'" | cut -f 1
    """
    with target.queue() as queue:
        found, value_of = 0, queue.roles.value_of
        for entry in queue.jobs.list(where, state=state, limit=limit):
            if not (found or as_json) and on_terminal():
                data(_line(*HEADER))
            found += 1
            if as_json:
                data(json_line(entry.columns))
                continue
            at = value_of("run_at" if entry.state == UNCLAIMED else "owner_date", entry.outcome, None)
            time = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if isinstance(at, datetime) and at.tzinfo else at or ""
            attempts, error = (value_of(role, entry.outcome, "") for role in ("attempts", "last_error"))
            data(_line(key_in_message(entry.job.key), entry.state or "?", attempts, time, error))
        count = queue.jobs.count(where, state=state, most=COUNT_LIMIT) if found == limit else found
    if not found:
        say(f"{queue.table.fullname} has no {'' if where is None else 'such '}{state or ''}{' ' if state else ''}job")
    elif count > found:
        say(f"these are {found:,} of {count:,}{' or more' if count == COUNT_LIMIT else ''}: --limit N lists more")


@click.command()
@ids
@json_option
@queue_options
@click.pass_context
def show(context: click.Context, target: Target, ids: tuple[str, ...], as_json: bool) -> None:
    """Show the state and every column of jobs. Write an ID of several columns as a line of CSV: eu,17.
    After `--` an ID may begin with a hyphen.

    An ID that is not the key of a row is reported (exit code 5).

    \b
    Examples:
      claimjobs show 1
      claimjobs show --json 1 2
    """
    with target.queue() as queue:
        found, missing = found_by_ids(queue, ids)
    texts = [json_line(entry.columns) if as_json else _block(entry.columns) for entry in found]
    if texts:
        data(("\n" if as_json else "\n\n").join(texts))
    if missing:
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
        found, missing = found_by_ids(queue, ids)
        cancelled = set(queue.cancel((entry.key for entry in found), reason))
        left = [key for key in (*(entry.key for entry in found), *missing) if key not in cancelled]
        states = {entry.job.key: entry.state for entry in queue.jobs.show(left)}
    data(json_line({"cancelled": len(cancelled)}) if as_json else len(cancelled))
    for key in left:
        why = f"it is {states[key]}" if key in states else f"no row of {queue.table.fullname} has this key"
        if states.get(key) in (UNCLAIMED, CLAIMED):
            why = "an open transaction holds it; try again when that has ended"
        say(f"{key_in_message(key)} was not cancelled: {why}")
    if left:
        context.exit(exits.INPUT)


@click.group()
@options_before
def dead() -> None:
    """Retry or drop dead jobs.

    A job is dead when it has failed as often as it may, or when its handler allowed no other try. It stays in the
    table until you retry or drop it. `claimjobs list --state dead` shows them.
    """


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
      claimjobs dead retry --where "last_error like 'Timeout%'"
    """
    _must_be_one_choice(**chosen)
    with target.queue() as queue:
        given, missing = _choice(queue, **chosen)
        retried = queue.jobs.retry(**given)
    _end(context, {"retried": retried}, missing, as_json=as_json)


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
        keys = given["keys"]
        count = queue.jobs.count(given["where"], state=DEAD) if keys is None else len(keys)
        if not yes and count:
            jobs = f"{number(count, 'dead job')} of {queue.table.fullname}"
            need_yes(f"this would drop {jobs}")
            ask(f"Drop {jobs} in {shown(queue.engine.url)}?")
        dropped = queue.jobs.drop(**given)
        if queue.settings.side_car and dropped:
            say(f"the rows of {queue.table.fullname} stay; {queue.roles.name} says that they are done")
    _end(context, {"dropped": dropped}, missing, as_json=as_json)


def _must_be_one_choice(ids: tuple[str, ...], where: str | None, everything: bool) -> None:
    """Raise UsageError unless exactly one of IDs, `--where` and `--all` is given. No server is started for that."""
    if sum((bool(ids), where is not None, everything)) != 1:
        raise click.UsageError("say which dead jobs: give either IDs, or --where SQL, or --all")


def _choice(queue: Queue, ids: tuple[str, ...], where: str | None, **_: bool) -> tuple[dict[str, Any], list[Any]]:
    """The arguments for `retry` and `drop`, and the keys that are those of no dead job. Raises BadParameter."""
    found, missing = found_by_ids(queue, ids)
    dead = [entry.key for entry in found if entry.state == DEAD]
    left = [*(entry.key for entry in found if entry.state != DEAD), *missing]
    return {"keys": dead if ids else None, "where": where}, left


def _end(context: click.Context, counted: dict[str, int], missing: list[Any], *, as_json: bool) -> None:
    data(json_line(counted) if as_json else next(iter(counted.values())))
    if missing:
        which = ", ".join(map(key_in_message, missing))
        listed, waits = next_command("list --state dead"), f"{next_command('cancel ID')} makes one dead that waits"
        say(f"no dead job: {which}: {listed} shows which are, and {waits}")
        context.exit(exits.INPUT)


# --- texts ---------------------------------------------------------------------------------------------------


def _line(*fields: Any) -> str:
    """One line for a job, cut to the width of a terminal."""
    *others, error = map(str, fields)
    line = "\t".join((*others, visible(" ".join(error.split()))))
    return line.expandtabs()[: shutil.get_terminal_size().columns] if on_terminal() else line


def _block(columns: Mapping[str, Any]) -> str:
    """One line for each column. The lines of a long text are aligned."""
    texts = {visible(name): "" if value is None else plain(value) for name, value in columns.items()}
    widest = max(map(len, texts))
    indent = "\n" + " " * (widest + 2)
    lines = {name: indent.join(map(visible, text.rstrip("\n").split("\n"))) for name, text in texts.items()}
    return "\n".join(f"{name:<{widest}}  {text}".rstrip() for name, text in lines.items())


def found_by_ids(queue: Queue, ids: Iterable[str]) -> tuple[Sequence[StoredJob], list[Any]]:
    """The jobs with these keys, with their keys as the database returns them, and the keys of no row.

    The database tells which key is which: a collation may take `ada` for `Ada`, and a type may have several spellings
    of one value. Raises BadParameter.
    """
    keys = keys_of(queue.roles.key, ids)
    found = queue.jobs.show(keys)
    there = {entry.key for entry in found}
    return found, [key for key in keys if key not in there and not queue.jobs.show([key])]


def keys_of(columns: Sequence[sa.Column[Any]], texts: Iterable[str]) -> list[Any]:
    """Keys of jobs, each once. One of several columns is a line of CSV, such as `eu,17`. Raises BadParameter."""
    names, found = ", ".join(column.name for column in columns), dict[Any, None]()
    for text in texts:
        no_key, fields = f"{text!r} is no key of {columns[0].table.fullname} ({names})", [text]
        if len(columns) > 1:
            with suppress(csv.Error):
                fields = next(csv.reader([text]), [])
        if len(fields) != len(columns):
            raise click.BadParameter(f"{no_key}: write its parts as {names.upper().replace(', ', ',')}")
        try:
            parts = tuple(map(key_part, columns, fields))
        except ValueError as error:
            raise click.BadParameter(f"{no_key}: {error}") from None
        found[parts if len(parts) > 1 else parts[0]] = None
    return list(found)
