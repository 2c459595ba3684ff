"""`claimjobs purge`: delete old jobs that are kept."""

from __future__ import annotations

import json
from datetime import timedelta

import click

from claimjobs.admin.ledger import Ledger
from claimjobs.admin.purge import Kept
from claimjobs.cli.console import data
from claimjobs.cli.durations import Duration
from claimjobs.cli.options import engine_for, queue_for, url_option
from claimjobs.cli.queue_options import queue_options
from claimjobs.queue.map_file import Described


@click.command()
@click.option("--older-than", type=Duration(), required=True, metavar="AGE", help="A number and a unit: s, m, h, d, w.")
@click.option(
    "--status",
    type=click.Choice(["done", "dead"]),
    default="done",
    show_default=True,
    help="The status of the jobs to delete.",
)
@click.option("--where", metavar="SQL", help="Only jobs for which this holds; SQL as after WHERE.")
@click.option("--ledger", metavar="NAME", help="Entries of this queue in a destination's ledger instead of jobs.")
@click.option("--dry-run", is_flag=True, help="Count them, and delete nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@url_option
@queue_options
def purge(
    older_than: timedelta,
    status: Kept,
    where: str | None,
    ledger: str | None,
    dry_run: bool,
    as_json: bool,
    url: str | None,
    described: Described,
) -> None:
    """Delete jobs that have been done, or dead, for longer than a given time, and print how many.

    Done jobs are in the table only if the queue keeps them (on_done="keep"). The column owner_date says since when a
    job is done or dead; a job without a value there is not deleted. Unclaimed and claimed jobs are never deleted. The
    deletion is committed in chunks of 1,000.

    With --json: "purged", or with --dry-run "would_purge".

    \b
    Examples:
      claimjobs purge --older-than 7d --dry-run
      claimjobs purge --older-than 12h --where "d like 'test%'"
      claimjobs purge --older-than 4w --status dead --json
      claimjobs purge --older-than 90d --ledger emails
    """
    if ledger is None:
        with queue_for(url, described) as queue:
            count = queue.purge(older_than, status=status, where=where, dry_run=dry_run)
    elif where is not None or status != "done":
        raise click.UsageError("--where and --status are for jobs: the ledger has neither")
    else:
        with engine_for(url) as engine:
            count = Ledger(ledger).purge(engine, older_than, dry_run=dry_run)
    data(json.dumps({"would_purge" if dry_run else "purged": count}) if as_json else count)
