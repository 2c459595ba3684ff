"""`claimjobs start-processing`: generators and consumers as processes, on a screen."""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import fields
from typing import Any, Final

import click
from click.core import ParameterSource

from claimjobs.cli import exits
from claimjobs.cli.console import LOG_FORMAT, data, say, show, write_nowhere
from claimjobs.cli.options import AT_LEAST_1, COUNT, AnyOption, Number, Seconds, bind, port, retry_options
from claimjobs.cli.queue_options import Target, claim_options
from claimjobs.cli.screen import Screen, summary_json, summary_lines
from claimjobs.embedded.server import database_url
from claimjobs.log_records import LogFormat, stderr_handler
from claimjobs.options import LARGEST_BATCH, Liveness
from claimjobs.signals import after, exit_despite_threads, graceful, interrupted_at_once
from claimjobs.workers.endpoints import monitored
from claimjobs.workers.process_main import Plan, log_details
from claimjobs.workers.run import Run, Summary
from claimjobs.workers.supervisor import Supervisor

GENERATORS: Final = 2
"""Generators of the demonstration. With a handler there are none by default."""
PATIENCE_SECONDS: Final = 86_400.0
"""Seconds that a consumer waits for a database that cannot be reached: long enough for a person to notice."""
SESSION_LOCKS: Final = {"auto": None, "on": True, "off": False}
"""The values of --session-lock, and of `Liveness.session_lock`."""
FUNCTION: Final = "MODULE:FUNCTION"
LONGEST_END_SECONDS: Final = 30.0
"""Seconds after the second Ctrl-C until the command ends in any case."""


def _seconds(name: str, words: str, default: float | None = None, *, least: float | None = None) -> AnyOption:
    return click.option(name, type=Seconds(least), default=default, help=words)


def _remember(context: click.Context, _option: click.Parameter, log_format: LogFormat) -> LogFormat:
    context.meta[LOG_FORMAT] = log_format  # an error that ends the command is written in this format, too
    return log_format


@click.command()
@click.argument("handler", required=False, metavar="[MODULE:FUNCTION]")
@click.option(
    "--generators", type=click.IntRange(0, 1_000), show_default="2; with a handler: 0", help="Processes that enqueue."
)
@click.option("--consumers", type=click.IntRange(1, 1_000), default=10, help="Processes that claim.")
@click.option("--batch-size", "size", type=click.IntRange(1, LARGEST_BATCH), default=100, help="Jobs of one claim.")
@click.option("--per", type=click.Choice(["batch", "job"]), help="What the function takes, if that is unclear.")
@click.option("--rate", type=Number(0.001, 1e9), help="Jobs per second to generate, by all generators.")
@click.option("--jobs", type=COUNT, help="Jobs to generate, by all generators.")
@_seconds("--duration", "Stop after this time.")
@_seconds("--grace", "Release a batch that is still open so long after --duration (exit code 6).", Run.grace)
@_seconds("--stop-timeout", "Release a batch that is still open so long after the first Ctrl-C or SIGTERM.", least=0)
@click.option("--drain", is_flag=True, help="Stop when the generators have ended and no job is due.")
@click.option(
    "--drain-retries", is_flag=True, help="As --drain, and wait for jobs that failed until they are done or dead."
)
@_seconds("--idle", "Stop when no consumer had a job for so long.")
@click.option(
    "--concurrency",
    type=AT_LEAST_1,
    show_default="1; with an async function: 10",
    help="Jobs that each consumer handles at once, in threads or, if the function is async, in tasks.",
)
@_seconds(
    "--lease", "A consumer without a heartbeat for so long is dead: its jobs are reclaimed.", Liveness.lease, least=2
)
@click.option(
    "--session-lock",
    type=click.Choice(list(SESSION_LOCKS)),
    default="auto",
    help="Whether a consumer also has a lock of its session, by which its death is seen at once. auto: if no pooler is "
    "in between; on: also behind a pooler by session, else it is an error; off: only the lease counts.",
)
@_seconds(
    "--max-batch-time",
    "A consumer whose batch makes no progress for so long is ended and replaced.",
    Liveness.max_batch_time,
)
@retry_options
@click.option(
    "--setup",
    metavar=FUNCTION,
    help="A context manager that each consumer enters before its first batch and leaves at its end.",
)
@click.option("--on-retry", metavar=FUNCTION, help="Call it with each job that failed and runs again, and its error.")
@click.option("--on-dead", metavar=FUNCTION, help="Call it with each job that is dead, and its error.")
@port("--metrics-port", "/metrics for Prometheus")
@port("--health-port", "/livez and /readyz")
@bind
@click.option("--json", "as_json", is_flag=True, help="Progress and summary as JSON lines.")
@_seconds("--progress-every", "Show the state so often, as a line, if it has changed.  [default: 30s; a live table]")
@click.option("--quiet", is_flag=True, help="Show no state of the run, only the log and the summary.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    callback=_remember,
    help="The log on standard error: as text, or as one JSON object a line.",
)
@claim_options
@click.pass_context
def start_processing(
    context: click.Context,
    /,
    target: Target,
    lease: float,
    max_batch_time: float,
    session_lock: str,
    metrics_port: int | None,
    health_port: int | None,
    bind: str,
    as_json: bool,
    progress_every: float | None,
    quiet: bool,
    **given: Any,
) -> None:
    """Run consumers, and generators, until Ctrl-C, --duration, --drain or --idle ends them.

    MODULE:FUNCTION takes a batch or a single job: the name or the type of its parameter decides. Without it the command
    is a demonstration: generators enqueue random jobs, and consumers take 0.1 s for a batch.

    With --hold transaction an open transaction holds the jobs. A function writes through `batch.connection`, or through
    a second parameter called `connection`: its writes are committed together with its jobs, or not at all.

    The first Ctrl-C or SIGTERM lets every consumer finish its batch. The second, or --stop-timeout, releases the
    batches and ends all processes. The run gives up (exit code 6) when it meets the same error again and again.
    `claimjobs --verbose start-processing` shows where a function failed. docs/commands.md has the details.

    \b
    Examples:
      claimjobs start-processing --duration 20
      claimjobs start-processing --jobs 50000 --drain
      claimjobs start-processing shop.mail:send --table emails --consumers 4 --where "address like '%.org'"
      claimjobs start-processing shop.books:enter --map orders.toml --hold transaction
    """
    limits = {field.name: given.pop(field.name) for field in fields(Run)}  # the other options are those of Plan
    if limits["generators"] is None:
        limits["generators"] = 0 if given["handler"] else GENERATORS
    run = Run(**{**limits, "drain": limits["drain"] or limits["drain_retries"]})
    ports = {"metrics_port": metrics_port, "health_port": health_port}
    is_monitored = any(port is not None for port in ports.values())
    has_end = not run.generators or run.jobs is not None or run.duration is not None
    an_end = (has_end, "--jobs, --duration or --generators 0")
    needs = {
        "drain": an_end,
        "drain_retries": an_end,
        "rate": (run.generators > 0, "--generators"),
        "jobs": (run.generators > 0, "--generators"),
        "grace": (run.duration is not None, "--duration"),
        "bind": (is_monitored, "--metrics-port or --health-port"),
        "per": (given["handler"] is not None, "MODULE:FUNCTION"),
        "concurrency": (given["handler"] is not None, "MODULE:FUNCTION"),
    }
    for name, (there, needed) in needs.items():
        if not there and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} has no effect without {needed}: give that, or leave out {option}")
    with database_url(target.url, say) as url:
        plan = Plan(
            url,
            target.described,
            liveness=Liveness(lease, max_batch_time, PATIENCE_SECONDS, SESSION_LOCKS[session_lock]),
            observed=is_monitored,
            verbose=bool(context.find_root().params.get("verbose")),
            **given,
        )
        log_details(plan.verbose)
        # Until the screen shows the log.
        logging.basicConfig(level=logging.INFO, handlers=[stderr_handler(plan.log_format)], force=True)
        screen = Screen(plan.log_format, progress_every, as_json=as_json, quiet=quiet, verbose=plan.verbose)
        supervisor, threads = Supervisor(plan, run, screen.update), threading.enumerate()

        def cancel() -> None:
            supervisor.cancel()
            after(LONGEST_END_SECONDS, os._exit, exits.INTERRUPTED)

        with interrupted_at_once():
            supervisor.check()
        # The first signal lets consumers finish their batches; the second cancels.
        with graceful(supervisor.stop, cancel), screen, monitored(supervisor, plan, bind, **ports):
            summary = supervisor.run()
    _print(summary, supervisor.display_error, as_json=as_json, plan=plan, drains=run.drain)
    code = exits.TABLE if summary.table_missing else exits.GAVE_UP if summary.gave_up else exits.OK
    code = exits.INTERRUPTED if supervisor.cancelled else code
    exit_despite_threads(code, but=threads)
    context.exit(code)


def _print(summary: Summary, display_error: OSError | None, *, as_json: bool, plan: Plan, drains: bool) -> None:
    """Print the summary. If standard output is a pipe that was closed, that is no error: its reader has what it wants.

    Any other failure to write is raised. Progress was written there with `as_json`, otherwise on standard error.
    """
    reader_may_leave = as_json
    try:
        if as_json:
            data(summary_json(summary))
        else:
            show(*summary_lines(summary, has_balance=plan.handler is None, drains=drains, verbose=plan.verbose))
    except OSError as error:
        reader_may_leave = reader_may_leave or display_error is None
        display_error = display_error or error
        write_nowhere(sys.stdout)
    if display_error is not None and not (reader_may_leave and isinstance(display_error, BrokenPipeError)):
        raise display_error
