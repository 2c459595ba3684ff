"""`setup-tables --wake-trigger`: makes, drops or prints the trigger that wakes consumers at each INSERT."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa

from claimjobs.cli.console import show
from claimjobs.database.connect import connected
from claimjobs.errors import TableMissing
from claimjobs.settings import Settings
from claimjobs.table.create import alter, exists, tables_for
from claimjobs.table.ddl import drop_statement, has_wake_trigger, make_statement, trigger_of
from claimjobs.table.side_car_table import side_car_tables

Wanted = Literal["make", "drop"] | None


def check_wanted(engine: sa.Engine, wanted: Wanted) -> None:
    """Refuse what is not possible before anything is made. Raises BadArgument."""
    if wanted is not None:
        trigger_of(engine)


def trigger_statement(engine: sa.Engine, settings: Settings, wanted: Wanted) -> str:
    """The statement that makes or drops the trigger."""
    jobs = tables_for(settings.table)[0]
    if wanted == "drop":
        return drop_statement(engine, jobs)
    claims = side_car_tables(engine, settings.table, columns=settings.columns)[0] if settings.side_car else jobs
    return make_statement(engine, jobs, claims)


def set_up_trigger(engine: sa.Engine, settings: Settings, wanted: Wanted) -> None:
    """Make or drop the trigger, and print whether the table has it. Raises TableMissing."""
    jobs = tables_for(settings.table)[0]
    with connected(engine) as connection:
        if not exists(connection, jobs):
            raise TableMissing(jobs.fullname)
        before = has_wake_trigger(connection, jobs)
    if wanted is not None:
        alter(engine, jobs, [trigger_statement(engine, settings, wanted)])
    if wanted == "drop":
        show(f"{jobs.fullname}: wake trigger {'dropped' if before else 'was not there'}")
    elif before or wanted == "make":
        show(f"{jobs.fullname}: wake trigger {'was there' if before else 'made'}")
