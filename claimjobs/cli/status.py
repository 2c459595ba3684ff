"""What shows a queue and changes nothing: `claimjobs status`, `explain` and `exporter`."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click

from claimjobs.admin.overview import LIMIT
from claimjobs.admin.stats import Stats
from claimjobs.cli import exits
from claimjobs.cli.console import data, json_line, log_as_messages, number, on_terminal, say, show
from claimjobs.cli.options import AT_LEAST_1, COUNT, Duration, Seconds, bind, port
from claimjobs.cli.queue_options import Target, claim_options, next_command, queue_options
from claimjobs.database.connect import connected
from claimjobs.dialects.inspection import VERDICTS, Verdict
from claimjobs.instants import age
from claimjobs.key_text import visible
from claimjobs.metrics.backlog_reader import READ_EVERY_SECONDS
from claimjobs.metrics.http_server import serving
from claimjobs.metrics.page import PageReader, queue_pages
from claimjobs.signals import graceful
from claimjobs.table.columns import STATES
from claimjobs.table.ddl import has_wake_trigger
from claimjobs.table.definitions import FIRST_OWNER
from claimjobs.table.reflection import COMMENT_LOST, lost_comment

IN_SECONDS: Final = ("age", "silence", "lease", "asleep")
LOCKS: Final = {"held": "lock held", "free": "lock free", "none": "lease only"}
VALUES_SHOWN: Final = 10
"""How many values without a state are shown, and how many ids of other programs."""

CODES: Final[dict[Verdict, int]] = {"warning": exits.WARNINGS, "will not work": exits.WILL_NOT_WORK}
"""The exit codes of `explain`; of other verdicts it is 0."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object; docs/commands.md describes its keys.")
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

    Unclaimed jobs are those that match the predicate of the queue (`where` in its --map); how many unclaimed rows do
    not match it is said, too. In the other states all rows of the table are counted.

    Rows whose status means no state are listed as "other", with their value. Jobs that are claimed without an owner's
    id, and those that another program has claimed, are listed with the command that frees them. docs/commands.md
    describes the keys of --json.

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
        retries = queue.retries()
        retrying = retries.jobs + retries.due
        lines = list(_lines_of(stats, queue.roles.state.values, where, retrying))
        with connected(queue.engine) as connection:
            if has_wake_trigger(connection, queue.table):
                lines.append("a trigger wakes consumers at each INSERT")
            if fix := lost_comment(connection, queue.table):
                lines.append(f"{COMMENT_LOST}: {fix}")
    exceeded = list(_exceeded(stats, **limits))
    if as_json:
        checked = {"exceeded": exceeded} if check else {}
        owners = [
            {f"{key}_seconds" if key in IN_SECONDS else key: value for key, value in asdict(owner).items()}
            for owner in stats.owners
        ]
        found = {
            "table": name,
            **{field: getattr(stats, field) for field in (*STATES, "ownerless", "unclaimable", "not_in_queue")},
            "other": [{"value": value, "rows": rows} for value, rows in stats.others.items()],
            "oldest_due_seconds": stats.oldest,
            "paused_seconds": stats.paused,
            "pause_reason": stats.pause_reason,
            "strangers": [{"owner_id": owner, "jobs": jobs} for owner, jobs in stats.strangers.items()],
            "owners": owners,
            "retrying": retrying,
            "where": where,
            **checked,
        }
        data(json_line(found))
    elif check:
        show(f"{name}: {'; '.join([*exceeded, *_paused(stats)] if exceeded else ['ok'])}")
    else:
        show(*(f"{name}: {line}" for line in lines))
    context.exit(exits.UNHEALTHY if exceeded else exits.OK)


def _exceeded(
    stats: Stats, max_age: timedelta | None, max_dead: int | None, max_waiting: int | None, min_owners: int | None
) -> Iterator[str]:
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


def _lines_of(stats: Stats, words: Mapping[str, Any], where: str | None, retrying: int) -> Iterator[str]:
    """`words`: the user's own for the states."""
    yield from _paused(stats)
    for state in STATES:
        own = words.get(state, state)
        yield f"{getattr(stats, state)} {state}" + ("" if own == state else f" ({visible(str(own))})")
    if where is not None:
        yield f"{stats.not_in_queue} unclaimed rows are not in the queue (where {visible(where)})"
    if stats.ownerless:
        yield f"{stats.ownerless} claimed without an owner: {next_command('reclaim --ownerless')} releases them"
    if stats.unclaimable:
        yield f"{stats.unclaimable} unclaimed that no claim can take: the log of the consumers names them"
    for value, rows in list(stats.others.items())[:VALUES_SHOWN]:
        yield f"{rows} other ({'NULL' if value is None else repr(value)})"
    if rest := list(stats.others.values())[VALUES_SHOWN:]:
        yield f"{sum(rest)} other ({len(rest)} more values)"
    if stats.oldest is not None:
        yield f"the oldest job has been due for {age(stats.oldest)}"
    else:
        due = f"{number(stats.due, 'job')} due; no run_at in the rows says for how long"
        yield due if stats.due else "no job is due"
    yield from _owners(stats)
    if retrying:
        yield f"{retrying:,} failed and will be tried again: {next_command('watch')} shows their errors"


def _owners(stats: Stats) -> Iterator[str]:
    for owner in stats.owners:
        lock, asleep = LOCKS[owner.lock], "" if owner.asleep is None else f"asleep for {age(owner.asleep)}, "
        yield (
            f"owner {owner.id} {owner.host}:{owner.pid} since {age(owner.age)}, "
            f"last heartbeat {age(owner.silence)} ago, lease {owner.lease:g} s, {lock}, {asleep}holds {owner.jobs}"
            f"{', dead' if owner.dead else ''}"
        )
    for stranger, jobs in list(stats.strangers.items())[:VALUES_SHOWN]:
        end = f"if it has ended, {next_command(f'reclaim --owner {stranger} --force')} reclaims them"
        whose = "another program" if stranger < FIRST_OWNER else "which claims from another table"
        yield f"{jobs} claimed by owner {stranger}, {whose}: {end}"
    if rest := list(stats.strangers.values())[VALUES_SHOWN:]:
        yield f"{sum(rest)} claimed by {len(rest)} more of other programs"


def _paused(stats: Stats) -> Iterator[str]:
    if stats.paused is not None:
        reason = f" ({visible(stats.pause_reason)})" if stats.pause_reason else ""
        yield f"paused for {age(stats.paused)}{reason}: {next_command('resume')} ends it"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object; its keys are described above.")
@click.option("--analyze", is_flag=True, help="Claim once for real, and roll back: count row locks.")
@claim_options
@click.pass_context
def explain(context: click.Context, target: Target, as_json: bool, analyze: bool) -> None:
    """Say what a claim and a settle of this queue do on this database, and what its settings mean for them.

    The statements that this queue would send are planned by the database (EXPLAIN), and are not run. Its settings, who
    holds a snapshot, rights and poolers are checked, too. With --analyze a claim of 100 jobs is made in a
    transaction that is rolled back. Until then other consumers skip the rows that it locks. Each line is a
    finding with its verdict, the worst first: will not work, warning, not known. SQL that removes the cause follows, if
    there is any. What is ok is counted, and shown with `claimjobs --verbose explain`.

    "not known" means that the server does not show it to this user; the line says why.

    The exit code is 0 if all is well or not known, 1 for warnings, 2 if this queue will not work.

    With --json: "table"; "verdict", the worst one; "findings", each with "check", "verdict", "says" and "fix" (a list
    of SQL statements); "phases", each statement of a claim and of a settle with "name", "sql" and "plan" (text as the
    database writes it).

    \b
    Examples:
      claimjobs explain
      claimjobs explain --table emails --where "attempts = 0" --order-by priority
      claimjobs explain --analyze --json
    """
    with target.queue() as queue:
        found = queue.explain(analyze=analyze)
    verbose = bool(context.find_root().params.get("verbose"))
    counts = Counter(finding.verdict for finding in found.findings)
    shown = [finding for finding in found.findings if verbose or finding.verdict != "ok"]
    checks = max((len(finding.check) for finding in shown), default=0)
    verdicts = max((len(finding.verdict) for finding in shown), default=0)
    lines = []
    for finding in sorted(shown, key=lambda finding: VERDICTS.index(finding.verdict), reverse=True):
        head, says = f"{finding.verdict:<{verdicts}}  {finding.check:<{checks}}  ", finding.says
        if on_terminal():  # broken at words
            width, indent = max(shutil.get_terminal_size().columns, len(head) + 20), " " * len(head)
            lines += textwrap.wrap(head + says, width, subsequent_indent=indent, break_on_hyphens=False)
        else:
            lines.append(head + says)
        lines += (f"    {line}" for statement in finding.fix for line in statement.split("\n"))
    count = ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(VERDICTS) if counts[verdict])
    more = "; `claimjobs --verbose explain ...` shows those that are ok" if counts["ok"] and not verbose else ""
    data(json_line(found.as_dict())) if as_json else show(*lines, f"{found.table}: {count}{more}")
    context.exit(CODES.get(found.verdict, exits.OK))


@click.command()
@port("--port", "/metrics", required=True)
@bind
@click.option("--every", type=Seconds(), default=READ_EVERY_SECONDS, help="Read the table at most so often.")
@click.option(
    "--limit", type=AT_LEAST_1, default=LIMIT, metavar="JOBS", help="Count the jobs of each state up to this number."
)
@queue_options
def exporter(target: Target, port: int, bind: str, every: float, limit: int) -> None:
    """Serve metrics of a table on /metrics, and the queue as a page on /, until Ctrl-C or SIGTERM.

    The page is for a browser: jobs by state with their course, owners, the last dead jobs. It changes nothing, needs no
    script, and is loaded again every 5 s. It has no password: leave it on the loopback address, or put a proxy before.

    It needs the extra `metrics`, and an account that may SELECT from the tables of the queue. It reads at most --limit
    rows of each state, and not the whole table: a number that is equal to --limit means "so many or more".
    docs/monitoring.md has the list of the metrics, and that of the tables.

    If the table cannot be read at the start, the command ends with the exit code of that error. If it cannot be read
    later, claimjobs_backlog_readable is 0, and a line on standard error says why.

    \b
    Examples:
      claimjobs exporter --port 9187
      claimjobs exporter --port 9187 --map orders.toml
    """
    from claimjobs.metrics.collectors import TableCollector, metrics_page  # noqa: PLC0415 - an extra

    with target.queue() as queue, log_as_messages():
        queue.overview(limit)
        reader = PageReader(queue, every=every, limit=limit)
        pages = {"/metrics": metrics_page(TableCollector(reader)), **queue_pages(reader)}
        with graceful(queue.stop, queue.stop), serving(bind, port, pages) as url:
            say(f"/metrics of table {reader.table}, and a page for a browser, on {url}")
            while not queue.stopping:
                reader.latest()
                queue.wait(every)
