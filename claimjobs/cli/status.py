"""`claimjobs status`: counts the jobs of a queue, lists its owners, and checks limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click

from claimjobs.admin.stats import OwnerStats, Stats
from claimjobs.cli import exits
from claimjobs.cli.console import age, command, data, number, show
from claimjobs.cli.options import COUNT, Duration
from claimjobs.cli.queue_options import Target, queue_options
from claimjobs.database.connect import connected
from claimjobs.key_text import visible
from claimjobs.queue.queue import Queue
from claimjobs.table.ddl import has_wake_trigger
from claimjobs.table.reflection import MARK_LOST, lost_mark

IN_SECONDS: Final = ("age", "silence", "lease", "asleep")
LOCKS: Final = {"held": "lock held", "free": "lock free", "none": "lease only"}
MOST: Final = 10
"""How many values without a state are shown."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object; its keys are described above.")
@click.option("--check", is_flag=True, help="Print one line, and exit with code 7 if a limit is exceeded.")
@click.option("--max-age", type=Duration(), help="The longest time that a job may be due: 90s, 5m.")
@click.option("--max-dead", type=COUNT, metavar="JOBS", help="The most dead jobs.")
@click.option("--max-waiting", type=COUNT, metavar="JOBS", help="The most unclaimed jobs, due or not.")
@click.option("--min-owners", type=COUNT, metavar="OWNERS", help="The fewest owners that are not dead.")
@queue_options
@click.pass_context
def status(context: click.Context, /, target: Target, as_json: bool, check: bool, **limits: Any) -> None:
    """Count the jobs by status, show how long the oldest has been due, and list the owners.

    An owner is a consumer that runs, or that was killed. It is dead when it has been silent for longer than its lease.
    If its lock was "held", it is dead as soon as the lock is free, unless the server was restarted. "lease only" means
    that the server gives no lock, for example behind a pooler. Done jobs are counted if they are kept; by default they
    are deleted.

    All rows of the table are counted, also those that do not match the predicate of the queue (`where` in its --map).

    Rows whose status means no state are listed as "other", with their value. If all rows are listed so, a value of the
    map is probably mistyped.

    Jobs that are claimed without an owner's id are counted: nobody works on them, and `claimjobs reclaim --ownerless`
    releases them. Jobs that another program has claimed (its owner_id is lower than those of claimjobs) are listed by
    owner_id: if that program has ended, reclaim them.

    With --json: "table"; "unclaimed", "claimed", "done", "dead" (jobs); "ownerless" (claimed jobs without an owner's
    id); "unclaimable" (unclaimed rows that no claim can take, as far as owners that live have found out; their log
    names them); "other", a list with the "value" and the "rows" of each value that means no state; "strangers", a list
    with the "owner_id" and the "jobs" of each other program; "oldest_due_seconds" (null if no job is due, or no run_at
    says for how long); "paused_seconds" (null: it is not paused) and "pause_reason"; "owners", each with "id", "host",
    "pid", "age_seconds" (since it began), "silence_seconds" (since its last heartbeat), "lease_seconds", "lock"
    ("held", "free" or "none": lease only), "dead" (true until its jobs are reclaimed), "asleep_seconds" (since it fell
    asleep; null: it is awake), "jobs" (that it holds) and "unclaimable"; "where_not_counted", the predicate of
    the queue, or null.

    --check is for cron and for monitoring such as Nagios. It needs at least one of --max-age, --max-dead, --max-waiting
    and --min-owners. It prints one line that names each limit that is exceeded, or "ok". With --json it adds the same
    to the object, as a list: "exceeded".

    \b
    Examples:
      claimjobs status
      claimjobs status --json
      claimjobs status --check --max-age 5m --max-dead 0
      claimjobs status --table emails
    """
    where = target.described.get("where")
    if check != any(limit is not None for limit in limits.values()):
        raise click.UsageError("--check needs a limit, and a limit needs --check: --check --max-age 5m --max-dead 0")
    if limits["min_owners"] is not None and target.described.get("hold") == "transaction":
        raise click.UsageError("--min-owners: with --hold transaction there are no owners")
    with target.queue() as queue:
        name, stats = queue.table.fullname, queue.stats()
        lines = [*_lines(stats), *_notes(queue, where)]
    exceeded = list(_exceeded(stats, **limits))
    if as_json:
        checked = {"exceeded": exceeded} if check else {}
        data(json.dumps({"table": name, **_plain(stats), "where_not_counted": where, **checked}, default=str))
    elif check:
        show(f"{name}: {'; '.join([*exceeded, *_paused(stats)] if exceeded else ['ok'])}")
    else:
        show(*(f"{name}: {line}" for line in lines))
    context.exit(exits.UNHEALTHY if exceeded else exits.OK)


def _exceeded(
    stats: Stats, max_age: timedelta | None, max_dead: int | None, max_waiting: int | None, min_owners: int | None
) -> Iterator[str]:
    """What is wrong, with the limit that says so."""
    if max_age is not None:
        limit = f"(--max-age {age(max_age.total_seconds())})"
        if stats.oldest is None and stats.due:
            yield f"no run_at says how long jobs have been due: name it in [columns] of the --map file {limit}"
        elif stats.oldest is not None and stats.oldest > max_age.total_seconds():
            yield f"the oldest job has been due for {age(stats.oldest)} {limit}"
    if max_dead is not None and stats.dead > max_dead:
        yield f"{number(stats.dead, 'dead job')} (--max-dead {max_dead})"
    if max_waiting is not None and stats.unclaimed > max_waiting:
        yield f"{number(stats.unclaimed, 'unclaimed job')} (--max-waiting {max_waiting})"
    living = sum(not owner.dead for owner in stats.owners)
    if min_owners is not None and living < min_owners:
        yield f"{number(living, 'living owner')} (--min-owners {min_owners})"


# --- JSON ----------------------------------------------------------------------------------------------------


def _plain(stats: Stats) -> dict[str, object]:
    return {
        **_counts(stats),
        "ownerless": stats.ownerless,
        "unclaimable": stats.unclaimable,
        "other": [{"value": value, "rows": rows} for value, rows in stats.others.items()],
        "oldest_due_seconds": stats.oldest,
        "paused_seconds": stats.paused,
        "pause_reason": stats.pause_reason,
        "strangers": [{"owner_id": owner, "jobs": jobs} for owner, jobs in stats.strangers.items()],
        "owners": [_in_seconds(asdict(owner)) for owner in stats.owners],
    }


def _in_seconds(owner: dict[str, object]) -> dict[str, object]:
    return {f"{key}_seconds" if key in IN_SECONDS else key: value for key, value in owner.items()}


def _counts(stats: Stats) -> dict[str, int]:
    return {"unclaimed": stats.unclaimed, "claimed": stats.claimed, "done": stats.done, "dead": stats.dead}


# --- lines ---------------------------------------------------------------------------------------------------


def _lines(stats: Stats) -> Iterator[str]:
    yield from _paused(stats)
    yield from (f"{count} {state}" for state, count in _counts(stats).items())
    if stats.ownerless:
        yield f"{stats.ownerless} claimed without an owner: {command('reclaim --ownerless')} releases them"
    if stats.unclaimable:
        yield f"{stats.unclaimable} unclaimed that no claim can take: the log of the consumers names them"
    for value, rows in list(stats.others.items())[:MOST]:
        yield f"{rows} other ({'NULL' if value is None else repr(value)})"
    if rest := list(stats.others.values())[MOST:]:
        yield f"{sum(rest)} other ({len(rest)} more values)"
    yield _oldest(stats)
    yield from map(_owner, stats.owners)
    for owner, jobs in list(stats.strangers.items())[:MOST]:
        end = command(f"reclaim --owner {owner} --force")
        yield f"{jobs} claimed by owner {owner}, another program: if it has ended, {end} reclaims them"
    if rest := list(stats.strangers.values())[MOST:]:
        yield f"{sum(rest)} claimed by {len(rest)} more of other programs"


def _paused(stats: Stats) -> Iterator[str]:
    if stats.paused is not None:
        reason = f" ({visible(stats.pause_reason)})" if stats.pause_reason else ""
        yield f"paused for {age(stats.paused)}{reason}: {command('resume')} ends it"


def _oldest(stats: Stats) -> str:
    if stats.oldest is not None:
        return f"the oldest job has been due for {age(stats.oldest)}"
    if not stats.due:
        return "no job is due"
    return f"{number(stats.due, 'job')} due; no run_at in the rows says for how long"


def _owner(owner: OwnerStats) -> str:
    words = (
        f"owner {owner.id} {owner.host}:{owner.pid} since {age(owner.age)}",
        f"last heartbeat {age(owner.silence)} ago",
        f"lease {owner.lease:g} s",
        LOCKS[owner.lock],
        *([] if owner.asleep is None else [f"asleep for {age(owner.asleep)}"]),
        f"holds {owner.jobs}",
    )
    return ", ".join((*words, "dead") if owner.dead else words)


def _notes(queue: Queue, where: object) -> Iterator[str]:
    """What else to know of this table."""
    if where is not None:
        yield f"all rows of the table are counted, also those that are not in the queue (where {where})"
    with connected(queue.engine) as connection:
        if has_wake_trigger(connection, queue.table):
            yield "a trigger wakes consumers at each INSERT"
        if fix := lost_mark(connection, queue.table):
            yield f"{MARK_LOST}: {fix}"
