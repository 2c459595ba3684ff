"""Options that describe the queue of a command, and the database and the Queue that they mean.

A parameter of Queue that is plain data is an option here; nothing else has to know its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final

import click
import sqlalchemy as sa

from claimjobs.cli.console import GIVEN, say
from claimjobs.cli.options import (
    AT_LEAST_1,
    MAP,
    NOTED,
    TABLE,
    URL,
    AnyCommand,
    AnyOption,
    Seconds,
    describing,
    shared,
    with_options,
)
from claimjobs.database.connect import connected, engine_of
from claimjobs.embedded.server import database_url
from claimjobs.errors import UnfitTable
from claimjobs.options import CLAIMS, FINISHES, HOLDS, LEAVE, Retry
from claimjobs.queue.map_file import Described, described_in, per_key_of, queue_of
from claimjobs.queue.queue import Queue
from claimjobs.table.ddl import side_car_name

DESCRIBING: Final = (
    URL,
    TABLE,
    MAP,
    shared(
        "hold",
        type=click.Choice(HOLDS),
        help="What holds a claim: its owner's lease (the default), or an open transaction, without an owner.",
    ),
    shared(
        "claims",
        type=click.Choice(CLAIMS),
        help="Where a claim is recorded: in the row of each job (the default), or as one row for its batch (with "
        "--side-car always).",
    ),
    shared("side-car", is_flag=True, default=None, help="Store outcomes in a second table."),
    shared(
        "per-key",
        metavar="COLUMN[,COLUMN]",
        help="Let the values of this column take turns, with limits, an order or a rate for each.",
    ),
)
"""The options of every command that works on a queue."""

CLAIMING: Final = (
    describing("where", metavar="SQL", help="Only jobs for which this holds; SQL as after WHERE."),
    describing(
        "order-by",
        multiple=True,
        metavar="COLUMN",
        help="The order of jobs: a column, `-column` for the highest first, or SQL. Can be repeated.",
    ),
    describing(
        "any-order",
        is_flag=True,
        help="Claim in no order: each consumer begins at a place of its own, and disturbs the others less.",
    ),
    describing(
        "per-key-at-most",
        type=AT_LEAST_1,
        metavar="N",
        help="With --per-key: so many jobs of one value are claimed at once.",
    ),
    describing(
        "per-key-in-order",
        is_flag=True,
        help="With --per-key: the jobs of one value are done one after the other, in their order, also if one fails.",
    ),
    describing(
        "per-key-rate",
        metavar="N/s",
        help="With --per-key: so many jobs of one value are claimed in a time: 10/s, 100/min, 5/h or 1/d.",
    ),
    describing(
        "on-done",
        type=click.Choice((*FINISHES, LEAVE)),
        help="What happens to done jobs. Default: kept, but deleted if claimjobs made the table.",
    ),
)
"""The other options, for commands that claim."""


RETRYING: Final = (
    describing(
        "retry-attempts",
        type=AT_LEAST_1,
        show_default=str(Retry.attempts),
        help="Failures after which a job is dead; with `reclaim` also the death of an owner that held that job alone.",
    ),
    describing(
        "retry-base",
        type=Seconds(0),
        metavar="SECONDS",
        show_default=f"{Retry.base:g}",
        help="The longest wait after the first failure of a job. It doubles with each further one.",
    ),
    describing(
        "retry-cap",
        type=Seconds(0),
        metavar="SECONDS",
        show_default=f"{Retry.cap:g}",
        help="The longest wait of a job that failed.",
    ),
)
"""How a failed job runs again, for commands that fail jobs. A map has them in its section [retry]."""


NAMING: Final = ("table", "map", "hold", "claims", "side_car", "per_key")
"""The options that a command in a message repeats, because it is about the same queue."""


@dataclass(frozen=True)
class Target:
    """The database and the queue that a command line means."""

    url: str | None = field(repr=False)  # holds a password
    described: Described
    """The parameters of the Queue: those of the map, changed by the options."""

    @contextmanager
    def database(self) -> Iterator[str]:
        """The given URL, or that of the embedded Postgres, which runs until the block is left.

        Raises EmbeddedFailed, and UnknownDatabase for an empty URL.
        """
        with database_url(self.url, say) as reached:
            yield reached

    @contextmanager
    def engine(self) -> Iterator[sa.Engine]:
        """An engine for the database. Its connections are closed when the block is left."""
        with self.database() as reached:
            engine = engine_of(reached)
            try:
                yield engine
            finally:
                engine.dispose()

    @contextmanager
    def queue(self, **more: Any) -> Iterator[Queue]:
        """The Queue, with these further parameters. Where its table is unfit, a side-car of it is told."""
        with self.engine() as engine:
            try:
                with queue_of(engine, self.described, **more) as queue:
                    yield queue
            except UnfitTable:
                self._tell_side_car(engine)
                raise

    def _tell_side_car(self, engine: sa.Engine) -> None:
        """Say that the table has a side-car which the command does not name: that is a queue of its own."""
        table = self.described.get("table")
        if not isinstance(table, str) or self.described.get("side_car"):
            return
        side_car = side_car_name(table, True)
        schema, _, name = side_car.rpartition(".")
        with suppress(sa.exc.SQLAlchemyError), connected(engine) as connection:
            if sa.inspect(connection).has_table(name, schema=schema or None):
                say(f"{table} has a side-car, {side_car}: give the --map of that queue, or --side-car")


def database_options(command: AnyCommand) -> AnyCommand:
    """Add `--url`; the command gets the database as `target`."""
    return _with_target(command, URL)


def queue_options(command: AnyCommand) -> AnyCommand:
    """Add the options that describe the queue, which the command gets as `target`."""
    return _with_target(command, *DESCRIBING)


def claim_options(command: AnyCommand) -> AnyCommand:
    """Add the options that describe the queue, and those for claims."""
    return _with_target(command, *DESCRIBING, *CLAIMING)


def retry_options(command: AnyCommand) -> AnyCommand:
    """Add the options for jobs that failed."""
    return with_options(command, *RETRYING)


def _with_target(command: AnyCommand, *options: AnyOption) -> AnyCommand:
    @wraps(command)
    def run(*arguments: Any, **named: Any) -> Any:
        return command(*arguments, target=_target(click.get_current_context()), **named)

    return with_options(run, *options)


def _target(context: click.Context) -> Target:
    """What the command line means. Raises UsageError or BadMap."""
    given = {name: value for name, value in context.meta[NOTED].items() if value not in (None, ())}
    naming = {f"--{name.replace('_', '-')}": given[name] for name in NAMING if name in given}
    context.meta[GIVEN] = {
        option: [option] if value is True else [option, str(value)] for option, value in naming.items()
    }
    url, map_file, table = given.pop("url", None), given.pop("map", None), given.get("table")
    if table is not None and not (table.isprintable() and all(part.strip() for part in table.split("."))):
        raise click.BadParameter(f"{table!r} is no name of a table: give NAME or SCHEMA.NAME", param_hint="--table")
    if given.pop("any_order", False):
        if "order_by" in given:
            raise click.UsageError("--any-order says that there is no order: leave out --order-by, or --any-order")
        given["order_by"] = ()
    retry = {name.removeprefix("retry_"): given.pop(name) for name in list(given) if name.startswith("retry_")}
    keyed = {name.removeprefix("per_key_"): given.pop(name) for name in list(given) if name.startswith("per_key_")}
    keyed = {name: value for name, value in keyed.items() if value}  # a flag that is not given is False
    if "per_key" in given:
        given["per_key"] = per_key_of("--per-key", {"columns": given.pop("per_key").split(",")})
    described = {**(described_in(map_file) if map_file else {}), **given}
    if keyed:
        if "per_key" not in described:
            raise click.UsageError(f"--per-key-{next(iter(keyed)).replace('_', '-')} has no effect without --per-key")
        described["per_key"] = per_key_of("--per-key", keyed, described["per_key"])
    if retry:
        described["retry"] = replace(described.get("retry", Retry()), **retry)
    return Target(url, described)
