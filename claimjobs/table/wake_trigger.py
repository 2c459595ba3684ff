"""The trigger that wakes idle consumers at each INSERT of any program, where the database can have one."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.dialects import dialect_named_by
from claimjobs.dialects.waking import WakeTrigger
from claimjobs.errors import BadArgument
from claimjobs.table.definitions import OWNER_TABLE


def trigger_of(engine: sa.Engine) -> WakeTrigger:
    """The kind of trigger of this database. Raises BadArgument, with the reason, if it has none. Connects not."""
    dialect = dialect_named_by(engine)
    if dialect.wake_trigger is None:
        raise BadArgument(
            f"{dialect.title} can have no trigger that wakes consumers, because {dialect.no_wake_trigger}; there is "
            "none to make or to drop: change the producers to `enqueue`, which wakes consumers; other rows are found "
            "some 5 s later"
        )
    return dialect.wake_trigger


def make_statement(engine: sa.Engine, table: sa.Table, claims: sa.Table) -> str:
    """The statement that makes the trigger. `claims`: the table with the claims; that of the owners is beside it."""
    return trigger_of(engine).make(_name(engine, table), _name(engine, claims), OWNER_TABLE)


def drop_statement(engine: sa.Engine, table: sa.Table) -> str:
    """The statement that drops it."""
    return trigger_of(engine).drop(_name(engine, table))


def has_wake_trigger(engine: sa.Engine, table: sa.Table) -> bool:
    """Whether the table has it."""
    with connected(engine) as connection:
        return is_trigger_there(connection, table)


def is_trigger_there(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the table has it, asked on this connection."""
    trigger = dialect_named_by(connection).wake_trigger
    return trigger is not None and bool(connection.scalar(sa.select(trigger.is_there(_name(connection, table)))))


def _name(bind: sa.Engine | sa.Connection, table: sa.Table) -> str:
    return bind.dialect.identifier_preparer.format_table(table)
