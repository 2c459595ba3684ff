"""`claimjobs setup-tables`: make the tables of a queue, add columns to an existing table, or print the DDL."""

from __future__ import annotations

import click
import sqlalchemy as sa

from claimjobs.cli.console import ask, asks, number, say, show, show_sql
from claimjobs.cli.options import engine_for, url_option
from claimjobs.cli.queue_options import queue_options
from claimjobs.cli.wake_trigger import Wanted, check_wanted, set_up_trigger, trigger_statement
from claimjobs.database.connect import engine_of, shown
from claimjobs.embedded.server import chosen_url
from claimjobs.errors import DoneUndecided, UnfitTable
from claimjobs.explain.diagnosis import ADDABLE, additions, advice, checked_roles
from claimjobs.queue.map_file import Described, queue_of
from claimjobs.queue.queue import Queue
from claimjobs.settings import Settings
from claimjobs.table import create as setup
from claimjobs.table.acceptance import check_no_own
from claimjobs.table.ddl import ddl
from claimjobs.table.definitions import ledger_table
from claimjobs.table.reflection import resolve
from claimjobs.table.side_car_table import side_car_tables

DDL_WITHOUT_URL = "postgresql://"
"""What the embedded database understands."""


@click.command()
@click.option("--add", multiple=True, metavar="ROLE[,ROLE...]", help=f"Add columns or the index: {', '.join(ADDABLE)}.")
@click.option(
    "--recreate", is_flag=True, help="First drop the table of jobs, with all its rows, if setup-tables made it."
)
@click.option("--yes", is_flag=True, help="Do not ask before --recreate or --add changes anything.")
@click.option("--sql", is_flag=True, help="Print the statements, for the URL's kind of database; change nothing.")
@click.option("--ledger", is_flag=True, help="Make the ledger of a destination instead, see `claimjobs.Ledger`.")
@click.option(
    "--wake-trigger", "trigger", flag_value="make", help="Also make a trigger by which each INSERT wakes consumers."
)
@click.option("--drop-wake-trigger", "trigger", flag_value="drop", help="Only drop that trigger.")
@url_option
@queue_options
def setup_tables(
    add: tuple[str, ...],
    recreate: bool,
    yes: bool,
    sql: bool,
    ledger: bool,
    trigger: Wanted,
    url: str | None,
    described: Described,
) -> None:
    """Make the missing tables of a queue, and print which tables existed.

    --table NAME makes the table of the demonstration, with two text columns as its payload. For a table with your own
    payload, describe it in Python (see `claimjobs.job_table`) and give it as MODULE:ATTRIBUTE.

    A table that exists already is checked, and never altered unasked. The command prints what the table lacks, with the
    statements that add it. Optional columns may be missing. --add prints the statements for the named roles, with the
    column names of the map, asks, and runs them; claim-index is the index that claims read. With --sql it only prints
    them, and connects to the database only if --add must read the table.

    --recreate drops only a table that claimjobs made, which it knows by the table's comment. It never drops the table
    of owners, whose ids must never be used again, nor the table of queues: all queues of a database share them.

    --side-car makes the table of outcomes for a table that must not be altered. Of that table only the key is checked.

    --ledger makes only the table claimjobs_ledger. In the database where your jobs have their effect, it tells the
    first attempt of a job from a second one. It is never dropped.

    --wake-trigger makes a trigger on the table, where the database can: an INSERT of any program (psql, COPY, another
    language) then wakes idle consumers when it is committed; without it they poll every 3 to 5 s. A producer needs no
    further right. It is not for a table that is filled by PREPARE TRANSACTION, which refuses a notification. A row that
    is inserted directly into a partition does not call it. --recreate drops it with the table. While the server's queue
    of notifications is half full, because a session that listens has an open transaction, it wakes nobody.

    A statement waits 2 s for its lock on a table, because all later statements on the table wait behind it. Then the
    command says who has the lock, and ends.

    \b
    Examples:
      claimjobs setup-tables
      claimjobs setup-tables --table shop.models:Email
      claimjobs setup-tables --add run_at,attempts,claim-index --yes
      claimjobs setup-tables --recreate --yes
      claimjobs setup-tables --sql --url mysql:// > jobs.sql
      claimjobs setup-tables --ledger
      claimjobs setup-tables --wake-trigger
    """
    wanted = _requested(add)
    if trigger is not None and not ledger:
        check_wanted(engine_of(chosen_url(url) or DDL_WITHOUT_URL), trigger)
    _refuse_mixtures(recreate, wanted, ledger, trigger=trigger, side_car=bool(described.get("side_car")))
    if sql and not wanted and not described.get("side_car"):
        _print_ddl(engine_of(chosen_url(url) or DDL_WITHOUT_URL), described, trigger, recreate, ledger=ledger)
        return
    if recreate and not yes and not asks():
        raise click.UsageError("--recreate drops a table, and nobody can be asked here: give --yes as well")
    with engine_for(url) as engine:
        if ledger:
            _tell(setup.make(engine, [ledger_table()]))
            return
        if wanted:
            settings = queue_of(engine, described).settings
            _add(engine, setup.tables_for(settings.table)[0], additions(engine, settings, wanted), yes, sql)
        if not sql:
            _set_up(engine, queue_of(engine, described), recreate, yes, trigger)
        elif described.get("side_car"):
            _print_ddl(engine, described, trigger, recreate, ledger=ledger)


def _print_ddl(engine: sa.Engine, described: Described, trigger: Wanted, recreate: bool, *, ledger: bool) -> None:
    settings = queue_of(engine, described).settings
    if trigger != "drop":
        tables = [ledger_table()] if ledger else _tables(engine, settings)
        show_sql(ddl(engine, tables, recreate=recreate))
    if trigger is not None and not ledger:
        show_sql(f"{trigger_statement(engine, settings, trigger)};")


def _requested(add: tuple[str, ...]) -> list[str]:
    named = [name.strip() for names in add for name in names.split(",") if name.strip()]
    for name in named:
        if name not in ADDABLE:
            raise click.BadParameter(f"{name!r} cannot be added: give some of {', '.join(ADDABLE)}", param_hint="--add")
    return named


def _refuse_mixtures(recreate: bool, wanted: list[str], ledger: bool, *, trigger: Wanted, side_car: bool) -> None:
    if (recreate or wanted) and ledger:
        raise click.UsageError("--ledger makes only the ledger, which is never dropped: leave out the other options")
    if recreate and trigger == "drop":
        raise click.UsageError("--drop-wake-trigger only drops the trigger: leave out --recreate")
    if recreate and wanted:
        raise click.UsageError("--recreate makes the table with all that --add could add: give only one of them")
    if side_car and (recreate or wanted):
        raise click.UsageError("--side-car is for a table that must not be altered: leave out --recreate and --add")


def _add(engine: sa.Engine, table: sa.Table, statements: list[str], yes: bool, sql: bool) -> None:
    """Print the statements, and run them after a question."""
    for statement in statements:
        show_sql(statement)
    if sql or not statements:
        return
    if not yes and not asks():
        raise click.UsageError("--add alters a table, and nobody can be asked here: give --yes as well, or --sql")
    if not yes:
        where = shown(engine.url)
        ask(f"Run {number(len(statements), 'statement')} in {where}?")
    setup.alter(engine, table, statements)


def _set_up(engine: sa.Engine, queue: Queue, recreate: bool, yes: bool, trigger: Wanted) -> None:
    settings = queue.settings
    if trigger == "drop":
        set_up_trigger(engine, settings, trigger)
        return
    if recreate:
        _confirm(engine, setup.drop_plan(engine, settings.table), yes)
    _check_what_is_there(engine, settings)
    _tell(setup.make(engine, _tables(engine, settings, mapped=True), recreate=recreate))
    set_up_trigger(engine, settings, trigger)
    roles = checked_roles(engine, settings)
    try:
        say(queue.done_jobs)
    except DoneUndecided as undecided:
        say(str(undecided))
    for line in advice(engine, settings, roles):
        say(line)


def _tables(engine: sa.Engine, settings: Settings, *, mapped: bool = False) -> list[sa.Table]:
    """Make the missing tables. A table with a map, of which only the name is known, cannot be made."""
    if settings.side_car:
        return side_car_tables(engine, settings.table, columns=settings.columns)
    jobs, *others = setup.tables_for(settings.table)
    ours = [jobs] if mapped or not _is_mapped_name(settings) else []
    return [*ours, *others]


def _is_mapped_name(settings: Settings) -> bool:
    return settings.columns is not None and isinstance(settings.table, str)


def _check_what_is_there(engine: sa.Engine, settings: Settings) -> None:
    """Raises OwnTable for records of our own, and UnfitTable if a table that cannot be made is missing."""
    jobs = setup.tables_for(settings.table)[0]
    with engine.connect() as connection:
        if setup.exists(connection, jobs):
            check_no_own(resolve(connection, jobs.fullname))
        elif _is_mapped_name(settings):
            raise UnfitTable(
                f"table {settings.table!r} is not in this database, and a table with a map is not made here: "
                "make it yourself, or check the name and the URL"
            )


def _confirm(engine: sa.Engine, drop_plan: setup.DropPlan | None, yes: bool) -> None:
    """Ask whether to drop the table. Raises Abort after a no."""
    if drop_plan and not yes:
        at_work = f"; {number(drop_plan.owners, 'owner')} at work on it" if drop_plan.owners else ""
        where = shown(engine.url)
        ask(f"Drop table {drop_plan.table} with {number(drop_plan.rows, 'row')} in {where}{at_work}?")


def _tell(made: setup.MakeResult) -> None:
    if lines := _lines(made):
        show(*lines)


def _lines(made: setup.MakeResult) -> list[str]:
    """One line for each table and each index."""
    return [
        *(f"{name}: {'dropped and made anew' if name in made.dropped else 'made'}" for name in made.created),
        *(f"{name}: was there{', kept' if made.dropped else ''}" for name in made.existing),
        *(f"{name}: index was missing, made" for name in made.indexes),
    ]
