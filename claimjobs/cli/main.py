"""The group of commands, and the exit code of each error."""

from __future__ import annotations

import errno
import importlib
import sys
from typing import Any, Final

import click

from claimjobs import __version__, errors
from claimjobs.cli import exits
from claimjobs.cli.console import URLS, say, usable_streams
from claimjobs.cli.options import options_before, with_variables
from claimjobs.database.masking import masked
from claimjobs.key_text import visible
from claimjobs.options import INSTEAD

COMMANDS: Final = {
    "setup-tables": ("tables:setup_tables", "Make the tables of a queue, or print their DDL."),
    "adopt": ("adopt:adopt", "Propose how a table becomes a queue, and write the files for it."),
    "upgrade-tables": ("tables:upgrade_tables", "Bring tables of an earlier version up to date."),
    "start-processing": ("start_processing:start_processing", "Run consumers and generators."),
    "enqueue": ("enqueue:enqueue", "Enqueue the rows of a file: JSON lines or CSV."),
    "list": ("jobs:list_", "List jobs in any state."),
    "show": ("jobs:show", "Show every column of jobs."),
    "cancel": ("jobs:cancel", "Make jobs dead that wait or are claimed."),
    "dead": ("jobs:dead", "Retry or drop jobs that are out of attempts."),
    "purge": ("operate:purge", "Delete jobs that have been done, or dead, for long."),
    "reclaim": ("operate:reclaim", "Reclaim the jobs of dead owners, if no consumer runs."),
    "pause": ("operate:pause", "Let no consumer claim from a table."),
    "resume": ("operate:resume", "End a pause."),
    "explain": ("status:explain", "Say what claims do on this database, and what to change."),
    "exporter": ("status:exporter", "Serve metrics of a table for Prometheus."),
    "watch": ("watch:watch", "Show a queue on the terminal, redrawn every few seconds."),
    "status": ("status:status", "Count the jobs, and show which owners hold them."),
}
"""The module and the function of each command, and its help. A module is imported only when its command is called."""

CODES: Final[dict[type[BaseException], int]] = {
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

NO_STREAM: Final = (errno.EBADF, errno.ENOSPC, errno.EIO, errno.EFBIG)
"""Error numbers of the system for a stream that is closed or full."""

EPILOG: Final = "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in exits.MEANINGS.items())


class Commands(click.Group):
    """Imports a command when it is called, and prints an error as one line, with an exit code."""

    def main(self, *args: Any, **named: Any) -> Any:
        with usable_streams():
            try:
                return super().main(*args, **named)
            except OSError as error:  # of a help text, or a message
                say(message(error))
                sys.exit(exit_code(error))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"claimjobs.cli.{module}"), name)
        return with_variables(command, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if isinstance(error, click.NoSuchOption) and error.option_name in INSTEAD:
                words = f"there is no {error.option_name} any more: {INSTEAD[error.option_name]}"
                error = click.UsageError(words, error.ctx)
            vars(error)["message"] = visible(masked(error.message, ctx.meta.get(URLS, ())))
            raise error from None
        except (click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            say(message(error), error, verbose=ctx.params["verbose"])
            ctx.exit(exit_code(error))


def message(error: BaseException) -> str:
    """An error as one line, without statements and values: what happened, and the next step."""
    if isinstance(error, errors.ClaimjobsError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and error.errno in NO_STREAM:
        return f"standard input or an output cannot be used ({error.strerror}): check where it is redirected"
    words = f"{type(error).__name__}: {' '.join(str(error).split())}"
    alchemy = sys.modules.get("sqlalchemy.exc")  # what was not imported before cannot have raised the error
    if alchemy is not None and isinstance(error, alchemy.SQLAlchemyError):
        from claimjobs.database.error_translation import reason  # noqa: PLC0415 - SQLAlchemy is slow to import

        words = f"the database refused ({reason(error)})"
    return f"{words}; `claimjobs --verbose ...` shows where"


def exit_code(error: BaseException) -> int:
    """The exit code of an error."""
    if getattr(error, "connection_invalidated", False):  # SQLAlchemy's word for a connection that broke
        return exits.CONNECTION
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), exits.FAILURE)


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80, "show_default": True},
    epilog=EPILOG,
)
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error.")
@options_before
@click.version_option(__version__, prog_name="claimjobs")
def main(verbose: bool) -> None:
    """Claim jobs in batches from the table you already have, on MySQL 8+, MariaDB and Postgres.

    --url, --table and --map may stand before the command or after it. Each option has an environment variable, which
    its help shows; for an option that can be repeated, separate the values by spaces. An option on the command line
    takes precedence.
    """


with_variables(main)
