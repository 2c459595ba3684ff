"""What an operator does to a queue that runs: `claimjobs pause`, `resume`, `reclaim` and `purge`."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import click

from claimjobs.cli.console import data, json_line, log_as_messages, number, say, show
from claimjobs.cli.options import AT_LEAST_1, Duration, retry_options
from claimjobs.cli.queue_options import Target, next_command, queue_options
from claimjobs.instants import age
from claimjobs.table.columns import ENDED, Ended
from claimjobs.table.definitions import FIRST_OWNER

REASON_CHARACTERS: Final = 1_000
"""The most characters of a reason."""


@click.command()
@click.option("--reason", metavar="TEXT", help="Why: `claimjobs status` shows it.")
@queue_options
def pause(target: Target, reason: str | None) -> None:
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
    if reason is not None and len(reason) > REASON_CHARACTERS:
        flaw = f"it has {len(reason):,} characters: give at most {REASON_CHARACTERS:,}"
        raise click.BadParameter(flaw, param_hint="--reason")
    with target.queue() as queue:
        queue.pause(reason)
        show(f"{queue.table.fullname} is paused: {next_command('resume')} ends that")


@click.command()
@queue_options
def resume(target: Target) -> None:
    """End a pause. Waiting consumers go on at once.

    \b
    Examples:
      claimjobs resume
      claimjobs resume --table emails
    """
    with target.queue() as queue:
        was_paused = queue.resume()
        show(f"{queue.table.fullname} {'is not paused any more' if was_paused else 'was not paused'}")


@click.command()
@click.option("--owner", type=AT_LEAST_1, metavar="ID", help="Only this owner; its process has ended.")
@click.option("--force", is_flag=True, help="With --owner: also if it seems to live.")
@click.option("--ownerless", is_flag=True, help="Only the jobs that are claimed without an owner's id.")
@retry_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object; its key is described above.")
@queue_options
def reclaim(target: Target, owner: int | None, force: bool, ownerless: bool, as_json: bool) -> None:
    """Reclaim the jobs of dead owners, and print how many. The owners are printed on standard error.

    An owner is dead when its session lock is free, or when it has been silent for longer than its lease. Running
    consumers reclaim the jobs of dead owners by themselves. Use this command when none is running.

    --owner reclaims the jobs of one owner. It is refused if the owner seems to live, because its jobs would run a
    second time. With --force they are reclaimed anyway: the owner's late outcomes are refused, and it goes on under a
    new id. If the table, a column or a side-car that the owner used was renamed or dropped, only --force reclaims them.

    --ownerless releases jobs that are claimed without an owner's id. No claim leaves such a job: another program
    or a person wrote it. That program must not run then. Without --ownerless such jobs are only counted.

    With --json: "handed_back" (jobs).

    \b
    Examples:
      claimjobs reclaim
      claimjobs reclaim --owner 10000017
      claimjobs reclaim --ownerless
    """
    if ownerless and owner is not None:
        raise click.UsageError("--ownerless is about jobs without an owner: leave out --owner")
    if force and owner is None:
        raise click.UsageError("--force goes with --owner ID")
    with target.queue() as queue, log_as_messages():
        if ownerless:
            jobs = queue.reclaim_ownerless()
        elif owner is None:
            jobs, left = queue.reclaim(), queue.stats().ownerless
            if left:
                step = next_command("reclaim --ownerless")
                say(f"{number(left, 'job')} claimed without an owner: {step} releases them")
        else:
            # By force nothing is asked: `stats` does not see the claims of owners that differ.
            stats = None if force else queue.stats()
            known = next((row for row in stats.owners if row.id == owner), None) if stats else None
            if known is not None and not known.dead:
                lock = "its session lock is held, " if known.lock == "held" else ""
                raise click.UsageError(
                    f"owner {owner} ({known.host}:{known.pid}) seems to live ({lock}its last heartbeat was "
                    f"{age(known.silence)} ago, its lease is {known.lease:g} s): its jobs would run twice. End that "
                    "process first, or give --force as well"
                )
            if stats and (owner < FIRST_OWNER or owner in stats.strangers):  # no sign of life is read of such a one
                raise click.UsageError(
                    f"owner {owner} is another program's (ids of claimjobs begin at {FIRST_OWNER}), or claims from "
                    "another table, and may live: end that program first, then give --force as well"
                )
            jobs = queue.reclaim_owner(owner, force=force)
            if stats and known is None and not jobs:
                step = f"see {next_command('status')}"
                say(f"no owner {owner} of {queue.table.fullname} is known, and it holds no job: {step}")
    data(json_line({"handed_back": jobs}) if as_json else jobs)


@click.command()
@click.option("--older-than", type=Duration(), required=True, metavar="AGE", help="A number and a unit: s, m, h, d, w.")
@click.option("--state", type=click.Choice(ENDED), default="done", help="The state of the jobs to delete.")
@click.option("--where", metavar="SQL", help="Only jobs for which this holds; SQL as after WHERE.")
@click.option("--dry-run", is_flag=True, help="Count them, and delete nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@queue_options
def purge(target: Target, older_than: timedelta, state: Ended, where: str | None, dry_run: bool, as_json: bool) -> None:
    """Delete jobs that have been done, or dead, for longer than a given time, and print how many.

    Done jobs are in the table only if the queue keeps them (on_done="keep"). The column owner_date says since when a
    job is done or dead; a job without a value there is not deleted. Unclaimed and claimed jobs are never deleted. The
    deletion is committed in chunks of 1,000.

    With --json: "purged", or with --dry-run "would_purge".

    \b
    Examples:
      claimjobs purge --older-than 7d --dry-run
      claimjobs purge --older-than 12h --where "d like 'test%'"
      claimjobs purge --older-than 4w --state dead --json
    """
    with target.queue() as queue:
        count = queue.purge(older_than, state=state, where=where, dry_run=dry_run)
    data(json_line({"would_purge" if dry_run else "purged": count}) if as_json else count)
