"""`claimjobs dead`: look at the jobs that are out of attempts, run them again, or drop them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click

from claimjobs.cli import exits
from claimjobs.cli.console import asks, number, on_terminal, say
from claimjobs.cli.keys import Keys, plain
from claimjobs.cli.numbers import Whole
from claimjobs.cli.options import Command, options_before, queue_for, url_option
from claimjobs.cli.shapes import shape_options
from claimjobs.database.connect import shown
from claimjobs.job import Job
from claimjobs.queue.config import Shape
from claimjobs.queue.queue import Queue
from claimjobs.table.predicates import predicate

where_option = click.option("--where", metavar="SQL", help="Only jobs for which this holds; SQL as after WHERE.")
limit_option = click.option("--limit", type=Whole(1), metavar="N", help="The first N of them, by their keys.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@click.group()
@options_before
def dead() -> None:
    """Look at dead jobs, run them again or drop them.

    A job is dead when it has failed as often as it may, or when its handler said that there is no use in another
    try. It stays in the table until it is retried or dropped here.
    """


# --- looking -------------------------------------------------------------------------------------------------


@dead.command("list")
@where_option
@limit_option
@json_option
@url_option
@shape_options
def list_(where: str | None, limit: int | None, as_json: bool, url: str | None, shape: Shape) -> None:
    """List the dead jobs by their keys: key, failed attempts and last error, with tabs between them.

    With --json: every column of each job, instants as 2026-01-31T12:00:00+00:00, bytes in base64.

    \b
    Examples:
      claimjobs dead list
      claimjobs dead list --limit 10 --json
      claimjobs dead list --where "last_error like 'Timeout%'" | cut -f 1
    """
    with queue_for(url, shape) as queue:
        shown = _json if as_json else _line_of(queue)
        found = 0
        for job in queue.dead.list(predicate(where), limit=limit):
            found += 1
            click.echo(shown(job))
    if not found:
        say(f"no dead job in {queue.table.fullname}" + (" for which this holds" if where else ""))


@dead.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@url_option
@shape_options
@click.pass_context
def show(context: click.Context, ids: tuple[str, ...], as_json: bool, url: str | None, shape: Shape) -> None:
    """Show every column of dead jobs. An ID of several columns is written as a line of CSV: eu,17.

    An ID that is no dead job's is told (exit code 5).

    \b
    Examples:
      claimjobs dead show 1
      claimjobs dead show --json 1 2
    """
    with queue_for(url, shape) as queue:
        keys = Keys(queue.roles.key)
        wanted = dict.fromkeys(keys.read(ids))
        found = queue.dead.show(wanted)
    click.echo("\n".join(map(_json, found)) if as_json else "\n\n".join(map(_block, found)), nl=bool(found))
    if missing := wanted.keys() - {job.key for job in found}:
        say(f"no dead job: {', '.join(keys.written(key) for key in wanted if key in missing)}")
        context.exit(exits.INPUT)


def _line_of(queue: Queue) -> Callable[[Job], str]:
    """One line a job; on a terminal no longer than that is wide."""
    keys = Keys(queue.roles.key)
    width = shutil.get_terminal_size().columns if on_terminal() else None

    def line(job: Job) -> str:
        error = " ".join(str(queue.roles.value_of("last_error", job, "")).split())
        text = f"{keys.written(job.key)}\t{queue.roles.value_of('attempts', job, '')}\t{error}"
        return text if width is None else text.expandtabs()[:width]

    return line


def _block(job: Job) -> str:
    """A line a column, the lines of a long text under each other."""
    widest = max(map(len, job))
    indent = "\n" + " " * (widest + 2)
    texts = {name: "" if value is None else plain(value) for name, value in _shown(job).items()}
    return "\n".join(f"{name:<{widest}}  {indent.join(text.splitlines())}".rstrip() for name, text in texts.items())


def _json(job: Job) -> str:
    return json.dumps(_shown(job), default=plain)


def _shown(job: Job) -> dict[str, Any]:
    """Every column; of one that cannot be read, why not."""
    return {name: job.shown(name) for name in job}


# --- deciding ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Which dead jobs are meant: those of the ids, those for which `where` holds, or all."""

    ids: tuple[str, ...]
    where: str | None
    everything: bool
    limit: int | None

    def check(self) -> None:
        """Raises UsageError unless exactly one way is given."""
        if sum((bool(self.ids), self.where is not None, self.everything)) != 1:
            raise click.UsageError("say which dead jobs are meant: either IDs, or --where SQL, or --all")
        if self.ids and self.limit:
            raise click.UsageError("--limit goes with --where or --all, not with IDs")

    def of(self, queue: Queue) -> dict[str, Any]:
        """The arguments for `retry` and `drop`. Raises BadParameter for an id that can be none."""
        keys = list(dict.fromkeys(Keys(queue.roles.key).read(self.ids))) if self.ids else None
        return {"keys": keys, "where": predicate(self.where), "limit": self.limit}


def choice_options(command: Command) -> Command:
    """IDS, `--where`, `--all` and `--limit`."""
    every = click.option("--all", "everything", is_flag=True, help="All dead jobs of the table.")
    ids = click.argument("ids", nargs=-1, metavar="[ID...]")
    return ids(where_option(every(limit_option(command))))


@dead.command("retry")
@choice_options
@json_option
@url_option
@shape_options
@click.pass_context
def retry_jobs(context: click.Context, /, as_json: bool, url: str | None, shape: Shape, **chosen: Any) -> None:
    """Give dead jobs all their attempts again, from now on, and print how many.

    Their last error stays until the next one. They are committed in chunks of 1,000: what was done before an
    interruption stands, and the same command goes on from there. An ID that is no dead job's is told (exit code 5).

    \b
    Examples:
      claimjobs dead retry --all
      claimjobs dead retry --where "last_error like 'Timeout%'" --limit 10
    """
    choice = Choice(**chosen)
    choice.check()
    with queue_for(url, shape) as queue:
        given = choice.of(queue)
        _report(context, queue.dead.retry(**given), given["keys"], "retried" if as_json else None)


@dead.command()
@choice_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@url_option
@shape_options
@click.pass_context
def drop(context: click.Context, /, yes: bool, as_json: bool, url: str | None, shape: Shape, **chosen: Any) -> None:
    """Delete dead jobs, after a question that says how many, and print how many.

    They are committed in chunks of 1,000. Where nobody can be asked, --yes is needed. An ID that is no dead job's
    is told (exit code 5).

    \b
    Examples:
      claimjobs dead drop --all --yes
      claimjobs dead drop --where "last_error like '%bounced%'" --yes
    """
    choice = Choice(**chosen)
    choice.check()
    with queue_for(url, shape) as queue:
        given = choice.of(queue)
        if not yes:
            _confirm(queue, **given)
        _report(context, queue.dead.drop(**given), given["keys"], "dropped" if as_json else None)


def _confirm(queue: Queue, keys: Iterable[Any] | None, where: Any, limit: int | None) -> None:
    """Return if they may be dropped, or are none. Raises UsageError where nobody can be asked, Abort for a no."""
    count = queue.dead.count(where) if keys is None else len(queue.dead.show(keys))
    if not count:
        return
    jobs = f"{number(min(count, limit or count), 'dead job')} of {queue.table.fullname}"
    where_from = shown(queue.engine.url)
    if not asks():
        raise click.UsageError(f"this would drop {jobs}, and nobody can be asked here: give --yes as well")
    click.confirm(f"Drop {jobs} in {where_from}?", abort=True, err=True)


def _report(context: click.Context, count: int, keys: list[Any] | None, as_json: str | None) -> None:
    click.echo(json.dumps({as_json: count}) if as_json else count)
    if keys is not None and count < len(keys):
        say(f"{count:,} of {number(len(keys), 'job')} were dead: `claimjobs dead list` shows which are")
        context.exit(exits.INPUT)
