"""`claimjobs adopt`: proposes how a table that is there becomes a queue, and writes the files for it."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import click
import sqlalchemy as sa

from claimjobs.cli.console import asks, say, show, show_sql
from claimjobs.cli.queue_options import Target, database_options
from claimjobs.errors import BadArgument
from claimjobs.explain.adoption import (
    INDEX,
    ROWS_READ,
    Adoption,
    Plan,
    additions,
    check_where,
    flaw_of_value,
    has_value,
    inspect_for_adoption,
    with_locks,
)
from claimjobs.key_text import visible
from claimjobs.options import ALL_KINDS
from claimjobs.queue.map_file import queue_of
from claimjobs.table.columns import ENDED, ROLES, STATES, UNCLAIMED, Columns
from claimjobs.table.create import missing_tables
from claimjobs.table.ddl import ddl_statements
from claimjobs.table.values import value_for

MIGRATIONS: Final = ("sql", "alembic", "django")
ENDS: Final = (UNCLAIMED, *ENDED)
ASKED: Final = {"rows": STATES, "batches": ENDS, "transaction": ENDS, "side-car": ()}
"""The states that a status column says, by the kind of the queue."""
LEAST: Final = ("unclaimed", "claimed")
"""The states that a status column must have a value for."""

HANDLER: Final = '''\
"""Does the jobs of table {table}: `claimjobs start-processing {module}:handle --map {map}`."""

import logging

from claimjobs import Job

log = logging.getLogger(__name__)


def handle(job: Job) -> None:
    """Called with each job; its columns are attributes. An exception is a failure, and the job runs again later.

    `raise RetryLater(seconds)` says when; `raise Fail("...", retry=False)` says that no other try can change it.
    """
    log.info("job %s", job.key)  # your work
'''
TEST: Final = '''\
"""The handler of table {table}, called with a job of it, which is given back. CLAIMJOBS_TEST_URL names a database with
this table in which the handler may do its work: it is never that of CLAIMJOBS_URL by itself.
"""

import os
from pathlib import Path

import pytest
from {module} import handle

from claimjobs import Queue, read_map


@pytest.mark.skipif(not os.environ.get("CLAIMJOBS_TEST_URL"), reason="CLAIMJOBS_TEST_URL must name a database for it")
def test_the_handler_does_a_job():
    described = read_map(Path(__file__).with_name("{map}")){hold}
    with Queue(os.environ["CLAIMJOBS_TEST_URL"], **described) as queue:  # its end releases the job
        batch = queue.claim(1)
        if not batch:
            pytest.skip("no row of the table is a job that is due")
        handle(batch.jobs[0])
'''
ALEMBIC: Final = '''\
"""{table} becomes a queue."""

from alembic import op

revision, down_revision = "claimjobs_{digest}", None  # the revision before


def upgrade() -> None:
{lines}
'''
DJANGO: Final = '''\
"""{table} becomes a queue."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = []  # the migration before
    operations = [
{lines}
    ]
'''


@click.command()
@click.argument("table")
@click.option(
    "--kind", type=click.Choice(ALL_KINDS), help="How claims and outcomes are recorded; asked for on a terminal."
)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE=VALUE",
    help=f"Which value of the status column means which of {', '.join(STATES)}. Can be repeated.",
)
@click.option(
    "--where",
    metavar="SQL",
    help="Which rows are jobs; SQL as after WHERE. Default: all, if no status and no run_at is left unread.",
)
@click.option("--on-done", type=click.Choice(["keep", "delete"]), help="What becomes of the rows of done jobs.")
@click.option("--migration", type=click.Choice(MIGRATIONS), default="sql", help="The form of the statements to run.")
@click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="The folder for the files."
)
@database_options
def adopt(target: Target, table: str, migration: str, into: Path, **chosen: Any) -> None:
    """Propose how a table becomes a queue, and write the files for it: a map, the statements to run, a handler and its
    test. The database is only read.

    What cannot be known is asked for on a terminal, and must be given by options elsewhere: the kind of queue, and what
    the values of a status column mean. No value is guessed. Files that exist are not written over.

    \b
    Examples:
      claimjobs adopt orders
      claimjobs adopt orders --kind side-car --where "state = 'paid'" --into shop
      claimjobs adopt mails --kind rows --state unclaimed=new --state claimed=busy --state done=sent --on-done keep
    """
    with target.engine() as engine:
        found = inspect_for_adoption(engine, table)
        show(*_described(found))
        plan = _plan(found, **chosen)
        statements = ddl_statements(engine, missing_tables(engine, plan.tables()))
        if plan.kind != "side-car":
            with queue_of(engine, plan.described()) as queue:
                statements = [*additions(engine, queue.settings, [*found.lacks(plan.kind), INDEX]), *statements]
        files, warnings = _files(plan, statements, migration, into), list(_warnings(plan))
        for path in files:
            if path.exists():
                raise click.UsageError(f"{path} exists, and is not written over: give another folder, --into")
        show_sql(_migration("sql", engine, statements, {}))
    into.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    # The reason once more, because the statements may have pushed it off the screen.
    show(f"{plan.kind}: {dict(found.reasons())[plan.kind]}", *(f"{path}: written" for path in files), *warnings)
    map_file, script, module, _test = files
    first = f"run {script}, then" if statements else "it has all that this queue needs:"
    run = f"`claimjobs start-processing {module.stem}:handle --map {map_file.name}`"
    run += "" if into == Path() else f" in {into}"
    say(f"nothing was changed in the database: {first} `claimjobs explain --map {map_file}`, then {run}")


# --- what is shown and asked ---------------------------------------------------------------------------------


def _described(found: Adoption) -> Iterator[str]:
    count = f"{found.rows:,}{' or more' if found.rows == ROWS_READ else ''}"
    yield f"{found.table.fullname}: {count} rows, key {', '.join(found.key) or '(none)'}"
    if not found.key:
        yield "without a key no row is found again: add a primary key, or a unique index of columns that are NOT NULL"
    for role, name in found.names.items():
        yield f"  column {name} may be the {role}"
    for name, role in found.refused():
        yield f"  column {name} is not taken as the {role}: its type, a reference or its values show another use"
    if found.values:
        shown = {"NULL" if value is None else visible(str(value)): rows for value, rows in found.values.items()}
        values = ", ".join(f"{value} ({rows:,})" for value, rows in shown.items())
        yield f"  {found.names['status']} has the values {values}"
    for kind, reason in found.reasons():
        yield f"  {kind:<12} {reason}{'  <- proposed' if kind == found.proposed() else ''}"


def _warnings(plan: Plan) -> Iterator[str]:
    """What may be meant, but is seldom right, of the values of the states."""
    found, states = plan.found, plan.states
    if not states:
        return
    status = found.names["status"]
    if found.rows and not has_value(found, states["unclaimed"]):
        some = f"none of the first {ROWS_READ:,} rows" if found.rows == ROWS_READ else "no row"
        yield (
            f"warning: {some} has {status} {states['unclaimed']!r}, which is to mean unclaimed: check --state "
            "unclaimed=VALUE, if such rows are not still to come"
        )
    if "dead" not in states:
        yield (
            f"warning: a job that fails is tried again without end, because no value of {status} means dead: "
            "give --state dead=VALUE"
        )


def _plan(
    found: Adoption, *, kind: str | None, states: tuple[str, ...], where: str | None, on_done: str | None
) -> Plan:
    """What was given, and what is asked for. Raises UsageError for what is missing where nobody can be asked, and
    BadPredicate.
    """
    if not found.key:
        raise BadArgument(f"table {found.table.fullname!r} has no key: give it a primary key, then run this again")
    if kind is None:
        proposed = found.proposed()
        kind = _answer("Kind", f"--kind, such as {proposed}", type=click.Choice(ALL_KINDS), default=proposed)
    given = _states(found, kind, states)
    unread = [name for name, role in found.refused() if role in ("status", "run_at")]
    unread += [found.names["status"]] if kind == "side-car" and found.values else []
    if where is None and unread:
        option = f'--where, such as --where "{unread[0]} = ...", or --where true for all rows'
        where = _answer("Which rows are jobs: SQL as after WHERE, such as true for all", option)
    if where is not None:
        check_where(found, where)
    if on_done is None and kind != "side-car" and "done" not in given:
        choice = click.Choice(["keep", "delete"])
        on_done = _answer("Rows of done jobs", "--on-done keep, or --on-done delete", type=choice)
    return Plan(found, kind, given, where, on_done)


def _answer(question: str, option: str, **prompt: Any) -> str:
    """Ask a person. Raises UsageError, with the option to give instead, where nobody can be asked."""
    if not asks():
        raise click.UsageError(f"nobody can be asked here: give {option}")
    return str(click.prompt(question, err=True, **prompt))


def _states(found: Adoption, kind: str, texts: tuple[str, ...]) -> dict[str, Any]:
    given: dict[str, str] = {}
    for text in texts:
        state, is_there, value = text.partition("=")
        if state not in STATES or not is_there:
            raise click.BadParameter(f"{text!r}: give one of {', '.join(STATES)}, and its value", param_hint="--state")
        given[state] = value
    asked = ASKED[kind] if "status" in found.names else ()
    if given and not asked:
        raise click.UsageError("--state: this queue reads no status column, so the values would mean nothing")
    wanted = [state for state in asked if state not in given]
    least = " ".join(f"--state {state}=VALUE" for state in wanted if state in LEAST)
    for state in wanted if least or asks() else ():
        question = f"Which value of {found.names['status']} means {state}"
        if state in LEAST:
            given[state] = _answer(question, least)
        elif answer := _answer(f"{question} (Enter: none)", least, default="", show_default=False):
            given[state] = answer
    values: dict[str, Any] = {}
    for state, text in given.items():
        try:
            values[state] = value_for(found.table.c[found.names["status"]], text)
            flaw = flaw_of_value(found, values[state])
        except ValueError as error:
            flaw = str(error)
        if flaw:
            raise click.BadParameter(f"{state}={text}: {flaw}", param_hint="--state")
    return values


# --- files ---------------------------------------------------------------------------------------------------


def _files(plan: Plan, statements: list[str], migration: str, into: Path) -> dict[Path, str]:
    """What is written, by the paths. `statements`: to be run before the first claim."""
    table = plan.found.table
    short = re.sub(r"\W", "_", table.name)
    short = f"table_{short}" if keyword.iskeyword(short) or not short.isidentifier() else short
    module, map_file = f"{short}_jobs", f"{short}.toml"
    quoted = table.fullname.replace("\\", r"\\").replace('"', r"\"")  # as within a text of Python
    # Alembic stores 32 characters of the name of a revision.
    digest = blake2b(table.fullname.encode(), digest_size=4).hexdigest()
    # An open transaction holds a job without a write in its row.
    hold = ' | {"hold": "transaction"}' if plan.kind == "rows" else ""
    form = {"table": quoted, "module": module, "map": map_file, "digest": digest, "hold": hold}
    script = f"{short}_setup.{'sql' if migration == 'sql' else 'py'}"
    described = plan.described()
    columns: Columns = described.pop("columns")
    named = {role: getattr(columns, role) or "" for role in ROLES}
    named = {role: name for role, name in named.items() if name != (getattr(Columns, role) or "")}
    if columns.key is not None:
        named["key"] = columns.key
    lines = [f"{name} = {_quoted(value)}" for name, value in described.items()]
    for section, values in {"columns": named, "states": columns.states or {}}.items():
        if values:
            lines += ["", f"[{section}]", *(f"{name} = {_quoted(value)}" for name, value in values.items())]
    return {
        into / map_file: "\n".join([*lines, ""]),
        into / script: _migration(migration, plan.found.engine, statements, form),
        into / f"{module}.py": HANDLER.format(**form),
        into / f"test_{module}.py": TEST.format(**form),
    }


def _quoted(value: Any) -> str:
    """A value in TOML, which has no surrogates."""
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


def _migration(kind: str, engine: sa.Engine, statements: list[str], form: Mapping[str, str]) -> str:
    if kind == "sql":
        return "".join(f"{with_locks(engine, statement)}\n\n" for statement in statements)
    if kind == "django":
        lines = "\n".join(f"        migrations.RunSQL({statement!r})," for statement in statements)
        return DJANGO.format(**form, lines=lines)
    escaped = [statement.replace(":", r"\:") for statement in statements]  # Alembic reads :name as a parameter
    return ALEMBIC.format(**form, lines="\n".join(f"    op.execute({statement!r})" for statement in escaped))
