"""`claimjobs status`: counts the jobs of a queue, and lists its owners."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta

import click
from rich import box
from rich.table import Table

from claimjobs.admin.stats import OwnerStats, Stats
from claimjobs.cli import exits
from claimjobs.cli.console import age, data, number, on_terminal, show, terminal
from claimjobs.cli.limits import Limits, limit_options
from claimjobs.cli.next_step import command
from claimjobs.cli.options import queue_for, url_option
from claimjobs.cli.queue_options import queue_options
from claimjobs.database.connect import connected
from claimjobs.key_text import visible
from claimjobs.queue.map_file import Described
from claimjobs.queue.queue import Queue
from claimjobs.table.ddl import has_wake_trigger
from claimjobs.table.on_done import MARK_LOST, lost_mark

IN_SECONDS = ("age", "silence", "lease", "asleep")

MOST = 10
"""How many values without a state are shown."""

LOCKS = {"held": "lock held", "free": "lock free", "none": "lease only"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object; its keys are described above.")
@click.option("--check", is_flag=True, help="Print one line, and exit with code 7 if a limit is exceeded.")
@limit_options
@url_option
@queue_options
@click.pass_context
def status(
    context: click.Context,
    as_json: bool,
    check: bool,
    max_age: timedelta | None,
    max_dead: int | None,
    max_waiting: int | None,
    min_owners: int | None,
    url: str | None,
    described: Described,
) -> None:
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
    limits = Limits(max_age, max_dead, max_waiting, min_owners)
    _must_fit(limits, check, described)
    with queue_for(url, described) as queue:
        name, stats = queue.table.fullname, queue.stats()
        notes = [*_whole(described), *_trigger(queue), *_comments(queue)]
    exceeded = list(limits.exceeded(stats))
    if as_json:
        checked = {"exceeded": exceeded} if check else {}
        data(json.dumps({**_object(name, stats), "where_not_counted": described.get("where"), **checked}, default=str))
    elif check:
        show(f"{name}: {'; '.join([*exceeded, *_paused(stats)] if exceeded else ['ok'])}")
    elif on_terminal():
        terminal().print(*_tables(name, stats), *map(visible, notes), sep="\n")
    else:
        show(*_lines(name, stats), *(f"{name}: {line}" for line in notes))
    context.exit(exits.UNHEALTHY if exceeded else exits.OK)


def _must_fit(limits: Limits, check: bool, described: Described) -> None:
    """Refuse limits that nothing would check."""
    if check != limits.given:
        raise click.UsageError("--check needs a limit, and a limit needs --check: --check --max-age 5m --max-dead 0")
    if limits.min_owners is not None and described.get("hold") == "transaction":
        raise click.UsageError("--min-owners: with --hold transaction there are no owners")


def _whole(described: Described) -> list[str]:
    """A note, if more rows are counted than the queue's jobs."""
    if "where" not in described:
        return []
    return [f"all rows of the table are counted, also those that are not in the queue (where {described['where']})"]


def _trigger(queue: Queue) -> list[str]:
    with connected(queue.engine) as connection:
        is_there = has_wake_trigger(connection, queue.table)
    return ["a trigger wakes consumers at each INSERT"] if is_there else []


def _comments(queue: Queue) -> list[str]:
    with connected(queue.engine) as connection:
        fix = lost_mark(connection, queue.table)
    return [] if fix is None else [f"{MARK_LOST}: {fix}"]


def _object(name: str, stats: Stats) -> dict[str, object]:
    return {
        "table": name,
        **_counts(stats),
        "ownerless": stats.ownerless,
        "unclaimable": stats.unclaimable,
        "other": [{"value": value, "rows": rows} for value, rows in stats.others.items()],
        "oldest_due_seconds": stats.oldest,
        "paused_seconds": stats.paused,
        "pause_reason": stats.pause_reason,
        "strangers": [{"owner_id": owner, "jobs": jobs} for owner, jobs in stats.strangers.items()],
        "owners": [_renamed(asdict(owner)) for owner in stats.owners],
    }


def _renamed(owner: dict[str, object]) -> dict[str, object]:
    return {f"{key}_seconds" if key in IN_SECONDS else key: value for key, value in owner.items()}


def _counts(stats: Stats) -> dict[str, int]:
    return {"unclaimed": stats.unclaimed, "claimed": stats.claimed, "done": stats.done, "dead": stats.dead}


def _lines(name: str, stats: Stats) -> list[str]:
    counts = [f"{name}: {count} {state}" for state, count in _counts(stats).items()]
    others = [f"{name}: {line}" for line in _others(stats)]
    owners = [f"{name}: owner {_owner(owner)}" for owner in stats.owners]
    nobody = [f"{name}: {line}" for line in _ownerless(stats)]
    strangers = [f"{name}: {line}" for line in _strangers(stats)]
    paused = [f"{name}: {line}" for line in _paused(stats)]
    nobody += [f"{name}: {line}" for line in _unclaimable(stats)]
    return [*paused, *counts, *nobody, *others, f"{name}: {_oldest(stats)}", *owners, *strangers]


def _paused(stats: Stats) -> list[str]:
    if stats.paused is None:
        return []
    reason = f" ({visible(stats.pause_reason)})" if stats.pause_reason else ""
    return [f"paused for {age(stats.paused)}{reason}: {command('resume')} ends it"]


def _ownerless(stats: Stats) -> list[str]:
    line = f"{stats.ownerless} claimed without an owner: {command('reclaim --ownerless')} releases them"
    return [line] if stats.ownerless else []


def _unclaimable(stats: Stats) -> list[str]:
    line = f"{stats.unclaimable} unclaimed that no claim can take: the log of the consumers names them"
    return [line] if stats.unclaimable else []


def _strangers(stats: Stats) -> list[str]:
    """Jobs that other programs have claimed. It is not known whether these programs run."""
    found = list(stats.strangers.items())
    lines = [
        f"{jobs} claimed by owner {owner}, another program: if it has ended, "
        f"{command(f'reclaim --owner {owner} --force')} reclaims them"
        for owner, jobs in found[:MOST]
    ]
    rest = found[MOST:]
    return lines + ([f"{sum(jobs for _, jobs in rest)} claimed by {len(rest)} more of other programs"] if rest else [])


def _others(stats: Stats) -> list[str]:
    """Rows whose value means no state. Only some values are shown: a column may have thousands."""
    found = list(stats.others.items())
    shown = [f"{rows} other ({'NULL' if value is None else repr(value)})" for value, rows in found[:MOST]]
    rest = found[MOST:]
    return shown + ([f"{sum(rows for _, rows in rest)} other ({len(rest)} more values)"] if rest else [])


def _oldest(stats: Stats) -> str:
    if stats.oldest is not None:
        return f"the oldest job has been due for {age(stats.oldest)}"
    if not stats.due:
        return "no job is due"
    return f"{number(stats.due, 'job')} due; no run_at in the rows says for how long"


def _owner(owner: OwnerStats) -> str:
    words = (
        f"{owner.id} {owner.host}:{owner.pid} since {age(owner.age)}",
        f"last heartbeat {age(owner.silence)} ago",
        f"lease {owner.lease:g} s",
        LOCKS[owner.lock],
        *([] if owner.asleep is None else [f"asleep for {age(owner.asleep)}"]),
        f"holds {owner.jobs}",
    )
    return ", ".join((*words, "dead") if owner.dead else words)


def _tables(name: str, stats: Stats) -> list[Table | str]:
    jobs = Table("status", title=visible(name), box=box.SIMPLE, title_justify="left")
    jobs.add_column("jobs", justify="right")
    for state, count in _counts(stats).items():
        jobs.add_row(state, f"{count:,}")
    for line in _others(stats):
        rows, _, what = line.partition(" ")
        jobs.add_row(what, f"{int(rows):,}")
    return [
        *_paused(stats),
        jobs,
        *_ownerless(stats),
        *_unclaimable(stats),
        _oldest(stats),
        *([_owners(stats)] if stats.owners else []),
        *_strangers(stats),
    ]


def _owners(stats: Stats) -> Table:
    owners = Table("owner", "host", "pid", "for", "silent for", "lease", "signs", box=box.SIMPLE)
    owners.add_column("jobs held", justify="right")
    for owner in stats.owners:
        owners.add_row(*_row(owner), style="red" if owner.dead else None)
    return owners


def _row(owner: OwnerStats) -> tuple[str, ...]:
    return (
        str(owner.id),
        visible(owner.host),
        str(owner.pid),
        age(owner.age),
        age(owner.silence),
        f"{owner.lease:g} s",
        "dead" if owner.dead else LOCKS[owner.lock] + ("" if owner.asleep is None else "\nasleep"),
        f"{owner.jobs:,}",
    )
