"""`claimjobs reclaim`: reclaim the jobs of dead owners, if no consumer runs that would."""

from __future__ import annotations

import json

import click

from claimjobs.admin.stats import OwnerStats
from claimjobs.cli.console import age, data, log_on_stderr, number, say
from claimjobs.cli.next_step import command
from claimjobs.cli.numbers import WholeNumber
from claimjobs.cli.options import queue_for, url_option
from claimjobs.cli.queue_options import queue_options
from claimjobs.options import Retry
from claimjobs.queue.map_file import Described
from claimjobs.queue.queue import Queue
from claimjobs.table.definitions import FIRST_OWNER


@click.command()
@click.option("--owner", type=WholeNumber(1), metavar="ID", help="Only this owner; its process has ended.")
@click.option("--force", is_flag=True, help="With --owner: also if it seems to live.")
@click.option("--ownerless", is_flag=True, help="Only the jobs that are claimed without an owner's id.")
@click.option(
    "--attempts",
    type=WholeNumber(1),
    default=Retry.attempts,
    show_default=True,
    help="Failures after which a job is dead. A job that a dead owner held alone has failed. As for the consumers.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object; its key is described above.")
@url_option
@queue_options
def reclaim(
    owner: int | None, force: bool, ownerless: bool, attempts: int, as_json: bool, url: str | None, described: Described
) -> None:
    """Reclaim the jobs of dead owners, and print how many. The owners are printed on standard error.

    An owner is dead when its session lock is free, or when it has been silent for longer than its lease. Running
    consumers reclaim the jobs of dead owners by themselves. Use this command when none is running.

    --owner reclaims the jobs of one owner. It is refused if the owner seems to live, because its jobs would run a
    second time. With --force they are reclaimed anyway: the owner's late outcomes are refused, and it goes on under a
    new id.

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
    with queue_for(url, described, retry=Retry(attempts=attempts)) as queue, log_on_stderr():
        jobs = _reclaimed(queue, owner, force=force, ownerless=ownerless)
    data(json.dumps({"handed_back": jobs}) if as_json else jobs)


def _reclaimed(queue: Queue, owner: int | None, *, force: bool, ownerless: bool) -> int:
    if ownerless:
        return queue.reclaim_ownerless()
    if owner is not None:
        return _from(queue, owner, force)
    jobs, left = queue.reclaim(), queue.stats().ownerless
    if left:
        say(f"{number(left, 'job')} claimed without an owner: {command('reclaim --ownerless')} releases them")
    return jobs


def _from(queue: Queue, owner_id: int, force: bool) -> int:
    found = [owner for owner in queue.stats().owners if owner.id == owner_id]
    if not force:
        _refuse_the_living(owner_id, *found)
    jobs = queue.reclaim_owner(owner_id)
    if not found and not jobs:
        say(f"no owner {owner_id} of {queue.table.fullname} is known, and it holds no job: see {command('status')}")
    return jobs


def _refuse_the_living(owner_id: int, owner: OwnerStats | None = None) -> None:
    """Raises UsageError for an owner that seems to live, and for another program's, which has no signs of life."""
    if owner is not None and not owner.dead:
        raise click.UsageError(
            f"owner {owner_id} ({owner.host}:{owner.pid}) seems to live ({_signs(owner)}): its jobs would run "
            "twice. End that process first, or give --force as well"
        )
    if owner_id < FIRST_OWNER:
        raise click.UsageError(
            f"owner {owner_id} is another program's (ids of claimjobs begin at {FIRST_OWNER}), and may live: end that "
            "program first, then give --force as well"
        )


def _signs(owner: OwnerStats) -> str:
    lock = "its session lock is held, " if owner.lock == "held" else ""
    return f"{lock}its last heartbeat was {age(owner.silence)} ago, its lease is {owner.lease:g} s"
