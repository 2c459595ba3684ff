"""The group of commands, and the way from an error to its exit code."""

from __future__ import annotations

import importlib
from typing import Any

import click

from claimjobs import __version__, errors
from claimjobs.cli import exits

COMMANDS = {
    "setup-tables": "claimjobs.cli.setup_tables:setup_tables",
    "start-processing": "claimjobs.cli.start_processing:start_processing",
    "enqueue": "claimjobs.cli.enqueue:enqueue",
    "status": "claimjobs.cli.status:status",
}
"""Each command's module is imported when it is called or its help is shown, not before."""

CODES: dict[type[BaseException], int] = {
    errors.ConnectionFailed: exits.CONNECTION,
    errors.UnfitTable: exits.TABLE,
    errors.BadPredicate: exits.INPUT,
    errors.BadRow: exits.INPUT,
    errors.ReferenceNotFound: exits.INPUT,
    errors.BadHandler: exits.INPUT,
}


class Commands(click.Group):
    """Commands loaded when wanted, and errors of ours as one line with an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except errors.ClaimjobsError as error:
            click.echo(f"claimjobs: {error}", err=True)
            ctx.exit(exit_code(error))


def exit_code(error: BaseException) -> int:
    """The exit code of an error."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), exits.FAILURE)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="claimjobs")
def main() -> None:
    """Claim jobs in batches from the table you already have, on MySQL 8+ and Postgres."""
