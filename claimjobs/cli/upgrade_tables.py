"""`claimjobs upgrade-tables`: bring tables that an earlier version made to the schema of this one."""

from __future__ import annotations

from collections.abc import Iterator

import click
import sqlalchemy as sa

from claimjobs.admin.upgrade import plan, upgrade
from claimjobs.cli import exits
from claimjobs.cli.console import ask, asks, number, show, show_sql
from claimjobs.cli.options import engine_for, url_option
from claimjobs.database.connect import shown
from claimjobs.dialects import Dialect, dialect_named_by
from claimjobs.table.definitions import SCHEMA
from claimjobs.table.versions import OutdatedTable

UP_TO_DATE = f"all tables have schema {SCHEMA}"


@click.command()
@click.option("--check", is_flag=True, help=f"Only say what is outdated; exit code {exits.OUTDATED} if anything is.")
@click.option("--sql", is_flag=True, help="Print the statements; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before anything is changed.")
@click.option("--only", multiple=True, metavar="NAME", help="Of the tables of jobs only this one, perhaps in a schema.")
@url_option
def upgrade_tables(check: bool, sql: bool, yes: bool, only: tuple[str, ...], url: str | None) -> None:
    """Bring tables that an earlier version made to the schema of this one, while its consumers work.

    It upgrades the tables of owners, queues and the ledger, and each table of jobs and side-car that claimjobs made,
    which it knows by the table's comment. The comment also has the version of the schema. A table that you made is
    never altered: see `claimjobs setup-tables --add`.

    It prints each statement with what it locks and what it does under the lock, asks, and runs them. A statement that
    does not get its lock within 2 s is refused. What was done before stays, and the command can be run again.

    Upgrade the tables before the programs: consumers of the version before work on upgraded tables.

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
            _show(found, dialect_named_by(engine), sql)
            if not sql:
                _run(engine, found, only, yes)


def _report(found: list[OutdatedTable]) -> None:
    for table in found:
        has = f"schema {table.version}" if table.version else "missing"
        show(f"{table.table}: {has}; {number(len(table.changes), 'statement')} to schema {SCHEMA}")
    click.get_current_context().exit(exits.OUTDATED)


def _show(found: list[OutdatedTable], dialect: Dialect, sql: bool) -> None:
    if found:
        show_sql("\n\n".join(line for table in found for line in _lines(table, dialect, sql)))


def _lines(table: OutdatedTable, dialect: Dialect, sql: bool) -> Iterator[str]:
    """Each statement, below what it locks and what it does. As SQL the settings of its session are before it."""
    for change in table.changes:
        setting = f"{dialect.online_ddl.lock_timeout(change)};\n" if sql else ""
        yield f"-- {table.table}: locks {change.locks}\n-- {change.work}\n{setting}{change.statement};"


def _run(engine: sa.Engine, found: list[OutdatedTable], only: tuple[str, ...], yes: bool) -> None:
    if not yes and not asks():
        raise click.UsageError("this alters tables, and nobody can be asked here: give --yes, --sql or --check as well")
    if not yes:
        count = sum(len(table.changes) for table in found)
        ask(f"Run {number(count, 'statement')} in {shown(engine.url)}?")
    for table in upgrade(engine, only):
        show(f"{table.table}: {f'schema {table.version} to {SCHEMA}' if table.version else 'made'}")
