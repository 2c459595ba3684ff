"""`claimjobs upgrade-tables`: bring tables that an earlier version made to the schema of this one."""

from __future__ import annotations

import click
import sqlalchemy as sa

from claimjobs.admin.upgrade import OutdatedTable, plan, upgrade
from claimjobs.cli import exits
from claimjobs.cli.console import ask, asks, number, show, show_sql
from claimjobs.cli.options import engine_for, url_option
from claimjobs.database.connect import shown
from claimjobs.table.definitions import SCHEMA

UP_TO_DATE = f"nothing to do: all tables have schema {SCHEMA}"


@click.command()
@click.option("--check", is_flag=True, help=f"Only say what is outdated; exit code {exits.OUTDATED} if anything is.")
@click.option("--sql", is_flag=True, help="Print the statements; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before anything is changed.")
@click.option("--only", multiple=True, metavar="NAME", help="Of the tables of jobs only this one, perhaps in a schema.")
@url_option
def upgrade_tables(check: bool, sql: bool, yes: bool, only: tuple[str, ...], url: str | None) -> None:
    """Bring tables that an earlier version made to the schema of this one.

    It upgrades each table that claimjobs made, which it knows by the table's comment. The comment also has the version
    of the schema, and each later version has a numbered step of SQL. A table that you made is never altered: see
    `claimjobs setup-tables --add`.

    It prints the statements, asks, and runs them in their order. A statement that does not get its lock within 2 s is
    refused. The steps before it stay, and the command can be run again.

    \b
    Examples:
      claimjobs upgrade-tables --check
      claimjobs upgrade-tables --sql > upgrade.sql
      claimjobs upgrade-tables --yes
      claimjobs upgrade-tables --only jobs
    """
    if check and sql:
        raise click.UsageError("--check and --sql both change nothing: give only one of them")
    with engine_for(url) as engine:
        found = plan(engine, only)
        if not found and not sql:
            show(UP_TO_DATE)
        elif check:
            _report(found)
        else:
            for table in found:
                show_sql("\n".join(f"{statement};" for statements in table.changes for statement in statements))
            if not sql:
                _run(engine, found, only, yes)


def _report(found: list[OutdatedTable]) -> None:
    for table in found:
        changes = number(len(table.changes), "step")
        show(f"{table.table.fullname}: schema {table.version}; {changes} to schema {SCHEMA}")
    click.get_current_context().exit(exits.OUTDATED)


def _run(engine: sa.Engine, found: list[OutdatedTable], only: tuple[str, ...], yes: bool) -> None:
    if not yes and not asks():
        raise click.UsageError("this alters tables, and nobody can be asked here: give --yes, --sql or --check as well")
    if not yes:
        ask(f"Upgrade {number(len(found), 'table')} in {shown(engine.url)}?")
    for table in upgrade(engine, only):
        show(f"{table.table.fullname}: schema {table.version} to {SCHEMA}")
