"""The group of commands, and the exit code of each error."""

from __future__ import annotations

import errno
import importlib
import sys
from typing import Any

import click

from claimjobs import __version__, errors
from claimjobs.cli import exits, streams
from claimjobs.cli.console import say, say_error, urls_of
from claimjobs.cli.next_step import completed
from claimjobs.cli.options import options_before, with_variables
from claimjobs.database.masking import masked
from claimjobs.errors.dropped import INSTEAD
from claimjobs.key_text import visible

COMMANDS = {
    "setup-tables": ("claimjobs.cli.setup_tables:setup_tables", "Make the tables of a queue, or print their DDL."),
    "upgrade-tables": ("claimjobs.cli.upgrade_tables:upgrade_tables", "Bring tables of an earlier version up to date."),
    "start-processing": ("claimjobs.cli.start_processing:start_processing", "Run consumers and generators."),
    "enqueue": ("claimjobs.cli.enqueue:enqueue", "Enqueue the rows of a file: JSON lines or CSV."),
    "dead": ("claimjobs.cli.dead:dead", "List, show, retry or drop jobs that are out of attempts."),
    "purge": ("claimjobs.cli.purge:purge", "Delete jobs that have been done, or dead, for long."),
    "reclaim": ("claimjobs.cli.reclaim:reclaim", "Reclaim the jobs of dead owners, if no consumer runs."),
    "pause": ("claimjobs.cli.pause:pause", "Let no consumer claim from a table."),
    "resume": ("claimjobs.cli.pause:resume", "End a pause."),
    "explain": ("claimjobs.cli.explain:explain", "Say what claims do on this database, and what to change."),
    "exporter": ("claimjobs.cli.exporter:exporter", "Serve metrics of a table for Prometheus."),
    "status": ("claimjobs.cli.status:status", "Count the jobs, and show which owners hold them."),
}
"""The module of each command, and its help. A module is imported only when its command is called."""

CODES: dict[type[BaseException], int] = {
    errors.ConnectionFailed: exits.CONNECTION,
    errors.UnfitTable: exits.TABLE,
    errors.BadPredicate: exits.INPUT,
    errors.BadMap: exits.INPUT,
    errors.BadRow: exits.INPUT,
    errors.BadArgument: exits.USAGE,
    errors.ReferenceNotFound: exits.INPUT,
    errors.BadHandler: exits.INPUT,
    KeyboardInterrupt: exits.INTERRUPTED,
}

NO_STREAM = (errno.EBADF, errno.ENOSPC, errno.EIO, errno.EFBIG)
"""Error numbers of the system for a stream that is closed or full."""

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in exits.MEANINGS.items())


class Commands(click.Group):
    """Imports a command when it is called, and prints an error as one line, with an exit code."""

    def main(self, *args: Any, **named: Any) -> Any:
        streams.prepare()
        try:
            return super().main(*args, **named)
        except OSError as error:  # of a help text, or a message
            say(message(error))
            sys.exit(exit_code(error))
        finally:
            streams.give_up_output()

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return with_variables(command, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            known = _with_replacement(error)
            vars(known)["message"] = visible(masked(known.message, urls_of(ctx)))
            raise known from None
        except (click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            say_error(completed(message(error)), error, verbose=ctx.params["verbose"])
            ctx.exit(exit_code(error))


def _with_replacement(error: click.ClickException) -> click.ClickException:
    """The error; for an option that was dropped one that says what to use instead."""
    if not isinstance(error, click.NoSuchOption) or error.option_name not in INSTEAD:
        return error
    return click.UsageError(f"there is no {error.option_name} any more: {INSTEAD[error.option_name]}", error.ctx)


def message(error: BaseException) -> str:
    """An error as one line, without statements and values: what happened, and the next step."""
    if isinstance(error, errors.ClaimjobsError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and error.errno in NO_STREAM:
        return f"standard input or an output cannot be used ({error.strerror}): check where it is redirected"
    return f"{_message(error)}; `claimjobs --verbose ...` shows where"


def _message(error: BaseException) -> str:
    if _is_databases(error):
        from claimjobs.database.error_translation import reason  # noqa: PLC0415

        return f"the database refused ({reason(error)})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def exit_code(error: BaseException) -> int:
    """The exit code of an error."""
    if getattr(error, "connection_invalidated", False):  # SQLAlchemy's word for a connection that broke
        return exits.CONNECTION
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), exits.FAILURE)


def _is_databases(error: BaseException) -> bool:
    """SQLAlchemy is not imported here: if it was not imported before, it cannot have raised the error."""
    alchemy = sys.modules.get("sqlalchemy.exc")
    return alchemy is not None and isinstance(error, alchemy.SQLAlchemyError)


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error.")
@options_before
@click.version_option(__version__, prog_name="claimjobs")
def main(verbose: bool) -> None:
    """Claim jobs in batches from the table you already have, on MySQL 8+ and Postgres.

    --url, --table and --map may stand before the command or after it. Each option has an environment variable, which
    its help shows; for an option that can be repeated, separate the values by spaces. An option on the command line
    takes precedence.
    """


with_variables(main)
