"""The tables that claimjobs makes: jobs with a user's payload, side-cars, key rows, and those that queues share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.types import JSON_DOCUMENT, Instant, WholeSecond, database_now, exact_text, table_options
from claimjobs.errors import BadArgument, ColumnUnfit
from claimjobs.table.columns import OURS, STATES, UNCLAIMED, Columns

DEFAULT_TABLE: Final = "jobs"
OWNER_TABLE: Final = "claimjobs_owners"
QUEUES_TABLE: Final = "claimjobs_queues"
BATCHES_TABLE: Final = "claimjobs_batches"
SHARED_TABLES: Final = frozenset({OWNER_TABLE, QUEUES_TABLE, BATCHES_TABLE})
"""The tables that all queues of a schema share. They are never dropped."""
LONGEST_NAME: Final = 255
"""Characters of the name of a queue's table."""
MADE_BY: Final = "made by claimjobs"
"""In the comment of each table that claimjobs makes. It drops no other table, and by default deletes no rows there."""
SCHEMA: Final = 1
"""The version of the tables that are defined here. Each later one has a step in the dialects' `table_rules.steps`."""
COMMENT: Final = f"{MADE_BY}, schema {SCHEMA}"
"""The comment of a table."""
DEMONSTRATION: Final = "jobs of the demonstration"
"""In the comment of the tables of the demonstration, which deletes their jobs."""
FIRST_OWNER: Final = 10_000_000
"""Owner ids are above any process id (Linux: at most 2**22) and any small number of a worker. So another program that
claims rows of the same table with such a number is never taken for an owner of ours."""
LAST_OWNER: Final = 2**31 - 1
"""The largest id that the type of the column holds. The first id of a table of owners counts seconds."""
_ZERO: Final = datetime(2025, 1, 1, tzinfo=UTC)
KEY_ROW_COLUMNS: Final = ("next_at", "held_back", "rate_at")
"""The columns of a table of key rows, beside its key."""
SMALLEST_KEY: Final = -(2**63)
"""The smallest number that a key can be."""
SHORTEST: Final = 63
"""Bytes that every database allows for a name."""


def version_of(comment: str | None) -> int | None:
    """The version of the schema that a table's comment names; None: claimjobs did not make the table."""
    found = re.search(rf"{MADE_BY}, schema (\d+)", comment or "")
    return None if found is None else int(found[1])


def fitting(name: str) -> str:
    """A name for an index or a type: this one, or if it is too long, its beginning and a hash: such names must differ,
    on some databases also those of two tables.
    """
    if len(name.encode()) <= SHORTEST:
        return name
    digest = blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{name.encode()[: SHORTEST - 1 - len(digest)].decode(errors='ignore')}_{digest}"


# --- jobs ----------------------------------------------------------------------------------------------------


def job_table(
    name: str,
    metadata: sa.MetaData,
    *payload: sa.schema.SchemaItem,
    unique: str | Sequence[str] = (),
    **options: Any,
) -> sa.Table:
    """A table of jobs whose payload is these columns (and constraints, and indexes).

    The other columns have defaults, so that a plain INSERT of the payload enqueues a job: `priority` (the lowest number
    first, like nice), `run_at` (the job is not claimed before it; its age counts from it), `attempts`, and `suspect`
    (how many jobs were in the batch that failed as a whole with this one). `options` are passed to `sqlalchemy.Table`.
    A primary key in the payload replaces our column `id`.
    `unique` names payload columns: at most one job may have their values. See `Queue.enqueue`.
    Raises ColumnUnfit for a payload column with the name of one of ours.
    """
    given = [item for item in payload if isinstance(item, sa.Column)]
    has_key = any(column.primary_key for column in given)
    key = [] if has_key else [sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True)]
    ours = _job_columns(f"{name}_status", options.get("schema", metadata.schema))
    reserved = {column.name for column in (*key, *ours)}
    if taken := [column.name for column in given if column.name in reserved]:
        raise reserved_name(name, taken[0])
    together = [unique] if isinstance(unique, str) else unique
    if changing := [column for column in together if column in OURS]:
        raise not_unique_by(name, changing[0])
    once = [sa.UniqueConstraint(*together, name=f"{name}_unique")] if together else []
    comment = ", ".join(filter(None, (options.pop("comment", None), COMMENT)))
    described = {**table_options(), **options, "comment": comment}
    table = sa.Table(name, metadata, *key, *payload, *ours, *once, **described)
    # What a claim reads in it: all columns that find waiting jobs in their order, without a sort.
    columns = table.c
    found = (columns.status, columns.priority, *table.primary_key, columns.run_at, columns.suspect)
    sa.Index(f"{name}_claim", *found)
    return table


def reserved_name(table: str, column: str) -> ColumnUnfit:
    """The error for a column that has the name of a column of claimjobs, or of a parameter."""
    return ColumnUnfit(
        f"column {column!r} of table {table!r} has a name that claimjobs uses for a column or a parameter of its own: "
        "rename it"
    )


def not_unique_by(table: str, column: str) -> BadArgument:
    """The error for a unique key that would not keep its value, because claimjobs writes the column."""
    return BadArgument(
        f"jobs of table {table!r} cannot be unique by {column!r}, which claimjobs changes when it claims or retries a "
        "job: name columns of their payload"
    )


def article_table(name: str = DEFAULT_TABLE, metadata: sa.MetaData | None = None) -> sa.Table:
    """`jobs` as in the article that this project follows: payload `d` and `e`, 64 characters each.

    Column names and types are the article's, so that its own script can work on the same rows. Only `id` has 64 bits:
    at 20,000 jobs a second an INTEGER is used up after 30 hours.
    https://blog.koehntopp.info/2021/07/13/mysql-a-job-queue-in-python.html
    """
    key = sa.Column("id", sa.BigInteger, primary_key=True)
    payload = (sa.Column(letter, sa.String(64), nullable=False) for letter in "de")
    return job_table(name, metadata or sa.MetaData(), key, *payload, sa.Index(f"{name}_d", "d"), comment=DEMONSTRATION)


def side_car_table(name: str, key: Iterable[sa.Column[Any]]) -> sa.Table:
    """The side-car of a table that must not be altered: its key and the columns of an outcome, with a row for each key.

    A key without a row has no outcome yet. There is no foreign key to the table: it would prevent the deletion of the
    user's rows or delete ours with them, and each claim would lock the row that it refers to. So a row of the side-car
    may outlive the user's row. `name` may include a schema.
    """
    schema, _, bare = name.rpartition(".")
    columns = tuple(key)
    names = Columns.of_side_car([column.name for column in columns]).names
    ours = [column for column in _job_columns(fitting(f"{bare}_status"), schema or None) if column.name in names]
    for column in ours:
        column.name = column.key = names[column.name]
    table = sa.Table(bare, sa.MetaData(), *columns, *ours, schema=schema or None, **table_options())
    # It finds the dead jobs among many that are done.
    sa.Index(fitting(f"{bare}_state"), table.c[names["status"]])
    return table


def owner_table(metadata: sa.MetaData | None = None, *, first: int = FIRST_OWNER) -> sa.Table:
    """The table of owners: one row for each owner. Its id is in `owner_id` of the jobs that it holds.

    `first`: the id of the first owner.
    """
    return sa.Table(
        OWNER_TABLE,
        metadata or sa.MetaData(),
        sa.Column("id", sa.Integer, sa.Identity(start=first), primary_key=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        _recorded_as("the table it takes jobs from", primary_key=False),
        sa.Column("started", Instant, nullable=False, server_default=database_now()),
        sa.Column("beat", Instant, nullable=False, server_default=database_now(), comment="last sign of life"),
        sa.Column("lease", sa.Float, nullable=False, comment="seconds without a beat after which it is dead"),
        sa.Column("server_since", Instant, comment="the server run it holds its session lock on; NULL: lease only"),
        sa.Column("died", Instant, comment="when it was declared dead; it never comes back under this id"),
        sa.Column("asleep", Instant, comment="since when it waits to be called; NULL: it looks for work by itself"),
        sa.Column("session", sa.BigInteger, comment="the session with its session lock; NULL: it never had one"),
        sa.Column("kind", sa.String(16), comment="how its claims are recorded: rows or batches; nothing: by locks"),
        sa.Column("sees", sa.Text, comment="the columns by which it sees claims"),
        sa.Column("unclaimable", sa.Integer, comment="how many rows it leaves, because no claim can take them"),
        comment=COMMENT,
        **table_options(auto_increment=first),
    )


def _recorded_as(comment: str, *, primary_key: bool) -> sa.Column[str]:
    """The name of the table of jobs: see `ColumnRoles.recorded_as`."""
    return sa.Column("claims", exact_text(LONGEST_NAME), primary_key=primary_key, nullable=False, comment=comment)


def id_above(connection: sa.Connection, ids: Iterable[sa.Select[Any]]) -> int:
    """An id that no owner has had, and that is above the result of each of these queries.

    It counts the seconds since `_ZERO`: enough for an owner a second, until the year 2092.
    """
    now, *used = connection.execute(sa.select(database_now(), *(each.scalar_subquery() for each in ids))).one()
    by_clock = FIRST_OWNER + int((now - _ZERO).total_seconds())
    return max([by_clock, *(int(one) + 1 for one in used if one is not None)])


def queues_table(metadata: sa.MetaData | None = None) -> sa.Table:
    """The table of queues: one row for each queue that an operator has paused."""
    return sa.Table(
        QUEUES_TABLE,
        metadata or sa.MetaData(),
        _recorded_as("the table of its jobs, as of an owner", primary_key=True),
        sa.Column("paused", Instant, comment="since when nobody claims from it; NULL: it is not paused"),
        sa.Column("reason", sa.Text, comment="why it is paused"),
        comment=COMMENT,
        **table_options(),
    )


def batches_table(metadata: sa.MetaData | None = None) -> sa.Table:
    """The table of claim rows, for claims per batch: one row for each claim that is not settled yet."""
    return sa.Table(
        BATCHES_TABLE,
        metadata or sa.MetaData(),
        _recorded_as("the table of its jobs, as of an owner", primary_key=True),
        sa.Column("owner_id", sa.Integer, primary_key=True, autoincrement=False, comment="who holds its jobs"),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False, comment="among those of its owner"),
        sa.Column("jobs", sa.Integer, nullable=False, comment="how many jobs it has"),
        sa.Column("keys", JSON_DOCUMENT, nullable=False, comment="the keys of its jobs"),
        sa.Column(
            "first_key", sa.BigInteger, nullable=False, server_default=str(SMALLEST_KEY), comment="no key is smaller"
        ),
        sa.Column("last_key", sa.BigInteger, nullable=False, server_default=str(2**63 - 1), comment="no key is larger"),
        sa.Column("since", Instant, nullable=False, comment="when they were claimed"),
        # A claim reads no batch whose keys are all smaller. In order these are also the closed ones, whose dead rows
        # stay while a snapshot is held. `claims` is not the first column, so that nothing else is read by this index.
        sa.Index(f"{BATCHES_TABLE}_last", "last_key", "claims"),
        comment=COMMENT,
        **table_options(),
    )


def key_table(name: str, key: Sequence[sa.Column[Any]], metadata: sa.MetaData) -> sa.Table:
    """The table of key rows. `name`: of the table of jobs. `key`: columns as the database has them."""
    table = sa.Table(
        fitting(f"{name}_keys"),
        metadata,
        *key,
        sa.Column(
            "next_at", Instant, nullable=False, server_default=database_now(), comment="when jobs may be claimed"
        ),
        sa.Column("held_back", sa.Boolean, nullable=False, server_default=sa.false(), comment="by a limit or a rate"),
        sa.Column("rate_at", Instant, comment="until when what was claimed lasts at the rate; NULL: there is none"),
        comment=COMMENT,
        **table_options(),
    )
    sa.Index(fitting(f"{table.name}_at"), table.c.next_at, *table.primary_key)
    return table


def shared_tables(schema: str | None = None) -> list[sa.Table]:
    """The tables that all queues of a schema share: the owners, the queues, and the claim rows.

    `schema`: that of the tables of jobs; None: the one that names without a schema mean.
    """
    metadata = sa.MetaData(schema=schema)
    return [owner_table(metadata), queues_table(metadata), batches_table(metadata)]


def _job_columns(states: str, schema: str | None) -> tuple[sa.Column[Any], ...]:
    """The columns of a job, in the order of `OURS`. `states`: the name of their type, where types have names; it is in
    the schema of the table, where no table of another schema has one.
    """
    return (
        sa.Column("status", sa.Enum(*STATES, name=states, schema=schema), nullable=False, server_default=UNCLAIMED),
        sa.Column("owner_id", sa.Integer),
        sa.Column("owner_date", WholeSecond),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("run_at", Instant, nullable=False, server_default=database_now()),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", sa.Text),
        sa.Column("suspect", sa.Integer, nullable=False, server_default="0"),
    )


# --- for others ----------------------------------------------------------------------------------------------


def include_object(  # noqa: PLR0917 - Alembic calls it so
    object_: Any, name: str | None, type_: str, reflected: bool, compare_to: Any
) -> bool:
    """Whether Alembic's autogenerate may compare an object: `include_object` of `context.configure`.

    It leaves out each table that claimjobs made and that only the database has. Of a `job_table` in your metadata it
    leaves out the columns and the index of claimjobs; columns of your payload are compared. `claimjobs upgrade-tables`
    changes ours, and so the comment of a table with an earlier schema.
    """
    table = object_ if isinstance(object_, sa.Table) else object_.table
    version = version_of(table.comment)
    if table.name in SHARED_TABLES or version is None:
        return table.name not in SHARED_TABLES
    if type_ != "table":
        return name not in {*OURS, f"{table.name}_claim"}
    return not reflected if compare_to is None else version_of(compare_to.comment) == version
