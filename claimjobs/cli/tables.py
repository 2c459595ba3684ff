"""`claimjobs setup-tables` and `upgrade-tables`: make the tables of a queue, add to one, bring them up to date."""

from __future__ import annotations

from typing import Any, Final, Literal

import click
import sqlalchemy as sa

from claimjobs.admin.upgrade import plan, upgrade
from claimjobs.cli import exits
from claimjobs.cli.console import ask, need_yes, number, say, show, show_sql
from claimjobs.cli.queue_options import Target, database_options, next_command, queue_options
from claimjobs.database.connect import connected, engine_of, shown
from claimjobs.embedded.server import chosen_url
from claimjobs.errors import DoneUndecided, TableMissing, UnfitTable
from claimjobs.explain import adoption
from claimjobs.explain.adoption import ADDABLE, additions
from claimjobs.queue.map_file import queue_of
from claimjobs.queue.queue import Queue
from claimjobs.settings import Settings
from claimjobs.table import create as setup
from claimjobs.table.acceptance import check_no_own
from claimjobs.table.create import key_tables, side_car_tables
from claimjobs.table.ddl import ddl, drop_statement, has_wake_trigger, make_statement, trigger_of
from claimjobs.table.definitions import SCHEMA
from claimjobs.table.reflection import is_made_by_us, resolve

DDL_WITHOUT_URL: Final = "postgresql://"
"""What the embedded database understands."""
Trigger = Literal["make", "drop"] | None

# --- setup-tables --------------------------------------------------------------------------------------------


def _names(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> list[str]:
    named = [name.strip() for names in given for name in names.split(",") if name.strip()]
    for name in named:
        if name not in ADDABLE:
            raise click.BadParameter(f"{name!r} cannot be added: give some of {', '.join(ADDABLE)}")
    return named


@click.command()
@click.option(
    "--add",
    multiple=True,
    metavar="ROLE[,ROLE...]",
    callback=_names,
    help=f"Add columns or the index: {', '.join(ADDABLE)}.",
)
@click.option(
    "--recreate", is_flag=True, help="First drop the table of jobs, with all its rows, if setup-tables made it."
)
@click.option("--yes", is_flag=True, help="Do not ask before --recreate or --add changes anything.")
@click.option("--sql", is_flag=True, help="Print the statements, for the URL's kind of database; change nothing.")
@click.option(
    "--wake-trigger", "trigger", flag_value="make", help="Also make a trigger by which each INSERT wakes consumers."
)
@click.option("--drop-wake-trigger", "trigger", flag_value="drop", help="Only drop that trigger.")
@queue_options
def setup_tables(target: Target, add: list[str], recreate: bool, yes: bool, sql: bool, trigger: Trigger) -> None:
    """Make the missing tables of a queue, and print which tables existed.

    --table NAME makes the table of the demonstration, with two text columns as its payload. For a table with your own
    payload, describe it in Python (see `claimjobs.job_table`) and give it as MODULE:ATTRIBUTE.

    A table that exists already is checked, and never altered unasked. `claimjobs explain` says what it lacks, and --add
    adds columns for the named roles, or the index. --recreate drops only a table that claimjobs made.

    --side-car makes the table of outcomes for a table that must not be altered. --wake-trigger makes a trigger by which
    each INSERT of any program wakes idle consumers. docs/commands.md has the details.

    \b
    Examples:
      claimjobs setup-tables
      claimjobs setup-tables --table shop.models:Email
      claimjobs setup-tables --add run_at,attempts,claim-index --yes
      claimjobs setup-tables --recreate --yes
      claimjobs setup-tables --sql --url mysql:// > jobs.sql
      claimjobs setup-tables --wake-trigger
    """
    side_car, per_key = target.described.get("side_car"), target.described.get("per_key")
    refused = {
        "--drop-wake-trigger only drops the trigger: leave out --recreate": recreate and trigger == "drop",
        "--recreate makes the table with all that --add could add: give only one of them": recreate and add,
        "--side-car is for a table that must not be altered: leave out --recreate and --add": side_car
        and (recreate or add),
    }
    for words, is_given in refused.items():
        if is_given:
            raise click.UsageError(words)
    if recreate and not (yes or sql):
        need_yes("--recreate drops a table")
    reads = bool(not sql or add or side_car or per_key)
    unconnected = queue_of(engine_of(chosen_url(target.url) or DDL_WITHOUT_URL), target.described)
    with target.queue() if reads else unconnected as queue:
        if trigger is not None:
            trigger_of(queue.engine)
        if add:
            _add(queue, add, yes=yes, sql=sql)
        if sql and not add:
            if trigger != "drop":
                show_sql(ddl(queue.engine, [*_tables(queue), *_key_rows(queue)], recreate=recreate))
            if trigger is not None:
                show_sql(f"{_trigger_statement(queue, trigger)};")
        if not sql:
            _set_up(queue, trigger, recreate, yes=yes)


def _add(queue: Queue, add: list[str], *, yes: bool, sql: bool) -> None:
    statements = additions(queue.engine, queue.settings, add)
    for statement in statements:
        show_sql(statement)
    if statements and not sql:
        if not yes:
            need_yes("--add alters a table")
            ask(f"Run {number(len(statements), 'statement')} in {shown(queue.engine.url)}?")
        adoption.add(queue.engine, queue.settings, add, statements)


def _set_up(queue: Queue, trigger: Trigger, recreate: bool, *, yes: bool) -> None:
    """Make what is missing, or drop the trigger, and say what else to know of the table. Raises TableMissing."""
    jobs = _jobs(queue)
    if trigger != "drop":
        _make(queue, recreate, yes=yes)
    with connected(queue.engine) as connection:
        if not setup.exists(connection, jobs):
            raise TableMissing(jobs.fullname)
        before = has_wake_trigger(connection, jobs)
    if trigger is not None:
        setup.alter(queue.engine, jobs, [_trigger_statement(queue, trigger)])
    if trigger == "drop":
        show(f"{jobs.fullname}: wake trigger {'dropped' if before else 'was not there'}")
        return
    if before or trigger == "make":
        show(f"{jobs.fullname}: wake trigger {'was there' if before else 'made'}")
    try:
        say(queue.done_jobs)
    except DoneUndecided as undecided:
        say(str(undecided))
    with connected(queue.engine) as connection:
        if not (queue.settings.side_car or is_made_by_us(connection, jobs)):
            say(f"{next_command('explain')} says what the table lacks")


def _make(queue: Queue, recreate: bool, *, yes: bool) -> None:
    """Make the tables, and print which were there. Raises NotClaimable for records of our own, and UnfitTable if a
    table that cannot be made is missing.
    """
    engine, settings, jobs = queue.engine, queue.settings, _jobs(queue)
    if recreate and setup.would_drop(engine, settings.table) and not yes:
        ask(f"Drop table {jobs.fullname} with all its rows in {shown(engine.url)}?")
    with connected(engine) as connection:
        if setup.exists(connection, jobs):
            check_no_own(resolve(connection, jobs.fullname))
        elif _is_mapped_name(settings):
            raise UnfitTable(
                f"table {jobs.fullname!r} is not in this database, and a table with a map is not made here: "
                "make it yourself, or check the name and the URL"
            )
    _tell(setup.make(engine, _tables(queue, mapped=True), recreate=recreate))
    if key_rows := _key_rows(queue):
        _tell(setup.make(engine, key_rows))


def _tell(made: setup.MakeResult) -> None:
    kept = ", kept" if made.dropped else ""
    show(
        *(f"{name}: {'dropped and made anew' if name in made.dropped else 'made'}" for name in made.created),
        *(f"{name}: was there{kept}" for name in made.existing),
        *(f"{name}: index was missing, made" for name in made.indexes),
    )


def _jobs(queue: Queue) -> sa.Table:
    return setup.tables_for(queue.settings.table)[0]


def _tables(queue: Queue, *, mapped: bool = False) -> list[sa.Table]:
    """The tables of the queue. `mapped`: also that of jobs if only its name is known, and so cannot be made."""
    settings = queue.settings
    if settings.side_car:
        return side_car_tables(queue.engine, settings.table, settings.side_car, columns=settings.columns)
    jobs, *others = setup.tables_for(settings.table)
    return [jobs, *others] if mapped or not _is_mapped_name(settings) else others


def _key_rows(queue: Queue) -> list[sa.Table]:
    """The table of key rows, if the queue has one. The table of jobs must be there."""
    settings = queue.settings
    if settings.per_key is None:
        return []
    given: dict[str, Any] = {"side_car": settings.side_car, "columns": settings.columns}
    return key_tables(queue.engine, settings.table, settings.per_key.names, **given)


def _is_mapped_name(settings: Settings) -> bool:
    return settings.columns is not None and isinstance(settings.table, str)


def _trigger_statement(queue: Queue, trigger: Trigger) -> str:
    jobs = _jobs(queue)
    if trigger == "drop":
        return drop_statement(queue.engine, jobs)
    return make_statement(queue.engine, jobs, _tables(queue, mapped=True)[0])


# --- upgrade-tables ------------------------------------------------------------------------------------------


@click.command()
@click.option("--check", is_flag=True, help=f"Only say what is outdated; exit code {exits.OUTDATED} if anything is.")
@click.option("--sql", is_flag=True, help="Print the statements; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before anything is changed.")
@click.option("--only", multiple=True, metavar="NAME", help="Of the tables of jobs only this one, perhaps in a schema.")
@database_options
@click.pass_context
def upgrade_tables(
    context: click.Context, target: Target, check: bool, sql: bool, yes: bool, only: tuple[str, ...]
) -> None:
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
    with target.engine() as engine:
        found = plan(engine, only)
        if not found and not sql:
            show(f"nothing to do: all tables have schema {SCHEMA}")
        elif check:
            for table in found:
                steps = number(len(table.changes), "step")
                show(f"{table.table.fullname}: schema {table.version}; {steps} to schema {SCHEMA}")
            context.exit(exits.OUTDATED)
        else:
            for table in found:
                show_sql("\n".join(f"{statement};" for statements in table.changes for statement in statements))
            if sql:
                return
            if not yes:
                need_yes("this alters tables")
                ask(f"Upgrade {number(len(found), 'table')} in {shown(engine.url)}?")
            for table in upgrade(engine, found):
                show(f"{table.table.fullname}: schema {table.version} to {SCHEMA}")
