"""`claimjobs dead`: list, show, retry or drop the jobs that are out of attempts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click

from claimjobs.cli import exits, next_step
from claimjobs.cli.console import ask, asks, data, number, on_terminal, say
from claimjobs.cli.keys import Keys
from claimjobs.cli.numbers import WholeNumber
from claimjobs.cli.options import AnyCommand, options_before, queue_for, url_option
from claimjobs.cli.queue_options import queue_options
from claimjobs.database.connect import shown
from claimjobs.job import Job
from claimjobs.key_text import key_in_message, plain, visible
from claimjobs.queue.map_file import Described
from claimjobs.queue.queue import Queue

where_option = click.option("--where", metavar="SQL", help="Only jobs for which this holds; SQL as after WHERE.")
limit_option = click.option("--limit", type=WholeNumber(1), metavar="N", help="The first N of them, by their keys.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@click.group()
@options_before
def dead() -> None:
    """List, show, retry or drop dead jobs.

    A job is dead when it has failed as often as it may, or when its handler allowed no other try. It stays in the
    table until you retry or drop it.
    """


# --- showing -------------------------------------------------------------------------------------------------


@dead.command("list")
@where_option
@limit_option
@json_option
@url_option
@queue_options
def list_(where: str | None, limit: int | None, as_json: bool, url: str | None, described: Described) -> None:
    """List the dead jobs in the order of their keys: key, failed attempts and last error, separated by tabs.

    Each job is one line: what cannot be printed is written as \\n or \\x1b, and a key with such a character in quotes.
    With --json nothing is changed: every column of each job, instants as 2026-01-31T12:00:00+00:00, bytes in base64.

    \b
    Examples:
      claimjobs dead list
      claimjobs dead list --limit 10 --json
      claimjobs dead list --where "last_error like 'Timeout%'" | cut -f 1
    """
    with queue_for(url, described) as queue:
        shown = _json if as_json else _line_of(queue)
        found = 0
        for job in queue.dead.list(where, limit=limit):
            found += 1
            data(shown(job))
    if not found:
        say(f"no dead job in {queue.table.fullname}" + (" for which this holds" if where else ""))


@dead.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@url_option
@queue_options
@click.pass_context
def show(context: click.Context, ids: tuple[str, ...], as_json: bool, url: str | None, described: Described) -> None:
    """Show every column of dead jobs. Write an ID of several columns as a line of CSV: eu,17.

    An ID that is not the key of a dead job is reported (exit code 5).

    \b
    Examples:
      claimjobs dead show 1
      claimjobs dead show --json 1 2
    """
    with queue_for(url, described) as queue:
        keys = Keys(queue.roles.key)
        wanted = dict.fromkeys(keys.read(ids))
        found = queue.dead.show(wanted)
    data("\n".join(map(_json, found)) if as_json else "\n\n".join(map(_block, found)), end=bool(found))
    _report_missing(context, queue, wanted, found)


def _report_missing(context: click.Context, queue: Queue, wanted: Iterable[Any], found: Iterable[Job]) -> None:
    there = {job.key for job in found}
    if missing := [key for key in wanted if key not in there]:
        which = ", ".join(map(key_in_message, missing))
        say(f"no dead job: {which}: {next_step.command('dead list')} shows which are")
        context.exit(exits.INPUT)


def _line_of(queue: Queue) -> Callable[[Job], str]:
    """One line for a job, cut to the width of a terminal."""
    width = shutil.get_terminal_size().columns if on_terminal() else None

    def line(job: Job) -> str:
        error = visible(" ".join(str(queue.roles.value_of("last_error", job, "")).split()))
        text = f"{key_in_message(job.key)}\t{queue.roles.value_of('attempts', job, '')}\t{error}"
        return text if width is None else text.expandtabs()[:width]

    return line


def _block(job: Job) -> str:
    """One line for each column. The lines of a long text are aligned."""
    texts = {visible(name): "" if value is None else plain(value) for name, value in _shown(job).items()}
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


@dataclass(frozen=True)
class Choice:
    """Which dead jobs to retry or drop: those of the ids, those for which `where` holds, or all."""

    ids: tuple[str, ...]
    where: str | None
    everything: bool
    limit: int | None

    def check(self) -> None:
        """Raises UsageError unless exactly one of them is given."""
        if sum((bool(self.ids), self.where is not None, self.everything)) != 1:
            raise click.UsageError("say which dead jobs: give either IDs, or --where SQL, or --all")
        if self.ids and self.limit:
            raise click.UsageError("--limit goes with --where or --all, not with IDs")

    def of(self, queue: Queue) -> dict[str, Any]:
        """The arguments for `retry` and `drop`. Raises BadParameter for a text that cannot be an id."""
        keys = list(dict.fromkeys(Keys(queue.roles.key).read(self.ids))) if self.ids else None
        return {"keys": keys, "where": self.where, "limit": self.limit}


def choice_options(command: AnyCommand) -> AnyCommand:
    """IDS, `--where`, `--all` and `--limit`."""
    every = click.option("--all", "everything", is_flag=True, help="All dead jobs of the table.")
    ids = click.argument("ids", nargs=-1, metavar="[ID...]")
    return ids(where_option(every(limit_option(command))))


@dead.command("retry")
@choice_options
@json_option
@url_option
@queue_options
@click.pass_context
def retry_jobs(context: click.Context, /, as_json: bool, url: str | None, described: Described, **chosen: Any) -> None:
    """Make dead jobs due now, with all their attempts, and print how many.

    Their last error stays until the next one. They are committed in chunks of 1,000: chunks that were committed before
    an interruption stay, and the same command goes on from there. An ID that is not the key of a dead job is reported
    (exit code 5).

    \b
    Examples:
      claimjobs dead retry --all
      claimjobs dead retry --where "last_error like 'Timeout%'" --limit 10
    """
    choice = Choice(**chosen)
    choice.check()
    with queue_for(url, described) as queue:
        given = choice.of(queue)
        there = queue.dead.show(given["keys"] or ())
        _report(queue.dead.retry(**given), "retried" if as_json else None)
        _report_missing(context, queue, given["keys"] or (), there)


@dead.command()
@choice_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@url_option
@queue_options
@click.pass_context
def drop(
    context: click.Context, /, yes: bool, as_json: bool, url: str | None, described: Described, **chosen: Any
) -> None:
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
    choice = Choice(**chosen)
    choice.check()
    with queue_for(url, described) as queue:
        given = choice.of(queue)
        there = queue.dead.show(given["keys"] or ())
        if not yes:
            _confirm(queue, **given)
        dropped = queue.dead.drop(**given)
        if described.get("side_car") and dropped:
            say(f"the rows of {queue.table.fullname} stay; {queue.roles.name} says that they are done")
        _report(dropped, "dropped" if as_json else None)
        _report_missing(context, queue, given["keys"] or (), there)


def _confirm(queue: Queue, keys: Iterable[Any] | None, where: Any, limit: int | None) -> None:
    """Ask whether to drop them, if there are any. Raises UsageError without a terminal, and Abort after a no."""
    count = queue.dead.count(where) if keys is None else len(queue.dead.show(keys))
    if not count:
        return
    jobs = f"{number(min(count, limit or count), 'dead job')} of {queue.table.fullname}"
    where_from = shown(queue.engine.url)
    if not asks():
        raise click.UsageError(f"this would drop {jobs}, and nobody can be asked here: give --yes as well")
    ask(f"Drop {jobs} in {where_from}?")


def _report(count: int, as_json: str | None) -> None:
    data(json.dumps({as_json: count}) if as_json else count)
