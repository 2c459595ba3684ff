"""`claimjobs setup-tables`: make the tables of a queue, or print their DDL."""

from __future__ import annotations

from typing import Any

import click
import sqlalchemy as sa

from claimjobs import setup
from claimjobs.cli.console import asks, number, say
from claimjobs.cli.options import engine_for, table_of, table_option, url_option
from claimjobs.connect import engine_of
from claimjobs.schema import ledger_table

DDL_WITHOUT_URL = "postgresql://"
"""What the embedded database understands."""


@click.command()
@click.option("--recreate", is_flag=True, help="Drop the table of jobs first, with all its rows.")
@click.option("--yes", is_flag=True, help="Do not ask before --recreate drops anything.")
@click.option("--sql", is_flag=True, help="Print the statements, for the URL's kind of database; connect to nothing.")
@click.option("--ledger", is_flag=True, help="Make the ledger of a destination instead, see `claimjobs.Ledger`.")
@url_option
@table_option
def setup_tables(recreate: bool, yes: bool, sql: bool, ledger: bool, url: str | None, table: str) -> None:
    """Make the tables of a queue that are missing, and say what was there.

    --table NAME makes the table of the demonstration, with two columns of text as its payload; a table with a
    payload of your own is described in Python (see `claimjobs.job_table`) and given as MODULE:ATTRIBUTE. A table
    that you have already, or that an earlier version made, is checked: what it lacks is said, with the statement
    that adds it. Without an optional column, or with an older index, it is a queue all the same.

    --recreate leaves the table of owners alone: all queues of a database share it, and its ids must never be
    used again.

    --ledger makes the table claimjobs_ledger, and no other: in a database where the work of jobs has its effect, it
    tells a second attempt from the first. It is never dropped.

    \b
    Examples:
      claimjobs setup-tables
      claimjobs setup-tables --table shop.models:Email
      claimjobs setup-tables --recreate --yes
      claimjobs setup-tables --sql --url mysql:// > jobs.sql
      claimjobs setup-tables --ledger
    """
    if ledger and recreate:
        raise click.UsageError(
            "--recreate is for the table of jobs: the ledger tells what was done, and is never dropped"
        )
    wanted = table_of(table)
    if sql:
        tables = [ledger_table()] if ledger else setup.tables_for(wanted)
        click.echo(setup.ddl(engine_of(url or DDL_WITHOUT_URL), tables, recreate=recreate), nl=False)
        return
    if recreate and not yes and not asks():
        raise click.UsageError("--recreate drops a table, and nobody can be asked here: give --yes as well")
    with engine_for(url) as engine:
        if ledger:
            _tell(setup.make(engine, [ledger_table()]))
        else:
            _set_up(engine, wanted, recreate, yes)


def _set_up(engine: sa.Engine, table: Any, recreate: bool, yes: bool) -> None:
    if recreate:
        _confirm(engine, setup.doomed(engine, table), yes)
    _tell(setup.make(engine, setup.tables_for(table), recreate=recreate))
    for line in setup.advice(engine, table, setup.check(engine, table)):
        say(line)


def _confirm(engine: sa.Engine, doomed: setup.Doomed | None, yes: bool) -> None:
    """Return if the table may be dropped; raises Abort where the answer is no."""
    if doomed and not yes:
        at_work = f"; {number(doomed.owners, 'owner')} at work on it" if doomed.owners else ""
        where = engine.url.render_as_string(hide_password=True)
        question = f"Drop table {doomed.table} with {number(doomed.rows, 'row')} in {where}{at_work}?"
        click.confirm(question, abort=True, err=True)


def _tell(made: setup.Made) -> None:
    for line in _lines(made):
        click.echo(line)


def _lines(made: setup.Made) -> list[str]:
    """One line a table, and one an index."""
    return [
        *(f"{name}: {'dropped and made anew' if name in made.dropped else 'made'}" for name in made.created),
        *(f"{name}: was there{', kept' if made.dropped else ''}" for name in made.existing),
        *(f"{name}: index was missing, made" for name in made.indexes),
    ]
