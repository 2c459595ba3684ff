"""`claimjobs setup-tables`: make the tables of a queue, add to one that is there, or print the DDL."""

from __future__ import annotations

from contextlib import suppress

import click
import sqlalchemy as sa

from claimjobs.cli.console import asks, number, say
from claimjobs.cli.options import engine_for, url_option
from claimjobs.cli.shapes import shape_options
from claimjobs.database.connect import engine_of, shown
from claimjobs.errors import UnfitTable
from claimjobs.queue.config import Shape
from claimjobs.queue.diagnosis import ADDABLE, additions, advice, check, what_becomes_of_done_jobs
from claimjobs.table import create as setup
from claimjobs.table.ddl import ddl
from claimjobs.table.definitions import ledger_table
from claimjobs.table.side_car_table import side_car_tables

DDL_WITHOUT_URL = "postgresql://"
"""What the embedded database understands."""


@click.command()
@click.option("--add", multiple=True, metavar="ROLE[,ROLE...]", help=f"Add what is asked for: {', '.join(ADDABLE)}.")
@click.option("--recreate", is_flag=True, help="Drop the table of jobs first, with all its rows, if it is ours.")
@click.option("--yes", is_flag=True, help="Do not ask before --recreate or --add changes anything.")
@click.option("--sql", is_flag=True, help="Print the statements, for the URL's kind of database; change nothing.")
@click.option("--ledger", is_flag=True, help="Make the ledger of a destination instead, see `claimjobs.Ledger`.")
@url_option
@shape_options
def setup_tables(
    add: tuple[str, ...], recreate: bool, yes: bool, sql: bool, ledger: bool, url: str | None, shape: Shape
) -> None:
    """Make the tables of a queue that are missing, and say what was there.

    --table NAME makes the table of the demonstration, with two columns of text as its payload; a table with a
    payload of your own is described in Python (see `claimjobs.job_table`) and given as MODULE:ATTRIBUTE.

    A table that you have already is looked at, and never altered unasked: what it lacks is said, with the statement
    that adds it. Without an optional column it is a queue all the same. --add prints the statements for the roles
    that are named, under the names that the map has for them, asks, and runs them; claim-index is the index that
    claims read. With --sql it only prints them, and nothing is connected to unless --add has to look at the table.

    --recreate drops no table that claimjobs did not make (it knows its own by their comment). It leaves the table
    of owners alone: all queues of a database share it, and its ids must never be used again.

    --side-car makes the table of claims beside a table that must not be altered, of which only its key is looked at.

    --ledger makes the table claimjobs_ledger, and no other: in a database where the work of jobs has its effect, it
    tells a second attempt from the first. It is never dropped.

    \b
    Examples:
      claimjobs setup-tables
      claimjobs setup-tables --table shop.models:Email
      claimjobs setup-tables --add run_at,attempts,claim-index --yes
      claimjobs setup-tables --recreate --yes
      claimjobs setup-tables --sql --url mysql:// > jobs.sql
      claimjobs setup-tables --ledger
    """
    wanted = _requested(add)
    if (recreate or wanted) and ledger:
        raise click.UsageError("--ledger makes the ledger and no more: it tells what was done, and is never dropped")
    if recreate and wanted:
        raise click.UsageError("--recreate makes the table anew, with all that --add could add: give one of them")
    if shape.side_car and (recreate or wanted):
        raise click.UsageError("--side-car is for a table that must not be altered: leave out --recreate and --add")
    if sql and not wanted and not shape.side_car:
        tables = [ledger_table()] if ledger else _tables(engine_of(url or DDL_WITHOUT_URL), shape)
        click.echo(ddl(engine_of(url or DDL_WITHOUT_URL), tables, recreate=recreate), nl=False)
        return
    if recreate and not yes and not asks():
        raise click.UsageError("--recreate drops a table, and nobody can be asked here: give --yes as well")
    with engine_for(url) as engine:
        if ledger:
            _tell(setup.make(engine, [ledger_table()]))
            return
        if wanted:
            _add(engine, additions(engine, shape, wanted), yes, sql)
        if not sql:
            _set_up(engine, shape, recreate, yes)
        elif shape.side_car:
            click.echo(ddl(engine, _tables(engine, shape)), nl=False)


def _requested(add: tuple[str, ...]) -> list[str]:
    named = [name.strip() for names in add for name in names.split(",") if name.strip()]
    for name in named:
        if name not in ADDABLE:
            raise click.BadParameter(f"{name!r} cannot be added: give some of {', '.join(ADDABLE)}", param_hint="--add")
    return named


def _add(engine: sa.Engine, statements: list[str], yes: bool, sql: bool) -> None:
    """Print the statements, and run them if they may be run."""
    for statement in statements:
        click.echo(statement)
    if sql or not statements:
        return
    if not yes and not asks():
        raise click.UsageError("--add alters a table, and nobody can be asked here: give --yes as well, or --sql")
    if not yes:
        where = shown(engine.url)
        click.confirm(f"Run {number(len(statements), 'statement')} in {where}?", abort=True, err=True)
    setup.alter(engine, statements)


def _set_up(engine: sa.Engine, shape: Shape, recreate: bool, yes: bool) -> None:
    if recreate:
        _confirm(engine, setup.drop_plan(engine, shape.load()), yes)
    _must_be_there(engine, shape)
    with suppress(UnfitTable):  # `check` says all that the table lacks
        say(what_becomes_of_done_jobs(engine, shape))
    _tell(setup.make(engine, _tables(engine, shape, mapped=True), recreate=recreate))
    for line in advice(engine, shape, check(engine, shape)):
        say(line)


def _tables(engine: sa.Engine, shape: Shape, *, mapped: bool = False) -> list[sa.Table]:
    """Those that the queue needs. One with a map, known by its name alone, is never ours to make."""
    if shape.side_car:
        claims, owners = side_car_tables(engine, shape.load(), columns=shape.columns)
        return [claims, owners] if shape.hold == "lease" else [claims]
    jobs, owners = setup.tables_for(shape.load())
    ours = [jobs] if mapped or not _is_mapped_name(shape) else []
    return [*ours, owners] if shape.hold == "lease" else ours


def _is_mapped_name(shape: Shape) -> bool:
    return shape.columns is not None and isinstance(shape.load(), str)


def _must_be_there(engine: sa.Engine, shape: Shape) -> None:
    if not _is_mapped_name(shape):
        return
    with engine.connect() as connection:
        if not setup.exists(connection, setup.tables_for(shape.table)[0]):
            raise UnfitTable(
                f"table {shape.table!r} is not in this database, and one that has a map is yours to make: "
                "make it, or check the name and the URL"
            )


def _confirm(engine: sa.Engine, drop_plan: setup.DropPlan | None, yes: bool) -> None:
    """Return if the table may be dropped; raises Abort where the answer is no."""
    if drop_plan and not yes:
        at_work = f"; {number(drop_plan.owners, 'owner')} at work on it" if drop_plan.owners else ""
        where = shown(engine.url)
        question = f"Drop table {drop_plan.table} with {number(drop_plan.rows, 'row')} in {where}{at_work}?"
        click.confirm(question, abort=True, err=True)


def _tell(made: setup.CreatedTables) -> None:
    for line in _lines(made):
        click.echo(line)


def _lines(made: setup.CreatedTables) -> list[str]:
    """One line a table, and one an index."""
    return [
        *(f"{name}: {'dropped and made anew' if name in made.dropped else 'made'}" for name in made.created),
        *(f"{name}: was there{', kept' if made.dropped else ''}" for name in made.existing),
        *(f"{name}: index was missing, made" for name in made.indexes),
    ]
