"""The database and the Queue that the options of a command mean."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final

import click
import sqlalchemy as sa

from claimjobs.cli.console import say
from claimjobs.cli.options import CLAIMING, DESCRIBING, NOTED, URL, AnyCommand, AnyOption, with_options
from claimjobs.database.connect import engine_of
from claimjobs.embedded.server import database_url
from claimjobs.options import Retry
from claimjobs.queue.map_file import Described, described_in, per_key_of, queue_of
from claimjobs.queue.queue import Queue

SHARED: Final = ("table", "map", "hold", "claims", "side_car", "per_key")
"""The options of every command that works on a queue, without the URL."""


@dataclass(frozen=True)
class Target:
    """The database and the queue that a command line means."""

    url: str | None = field(repr=False)  # holds a password
    described: Described
    """The parameters of the Queue: those of the map, changed by the options."""

    @contextmanager
    def engine(self) -> Iterator[sa.Engine]:
        """An engine for the database. Its connections are closed when the block is left."""
        with database_url(self.url, say) as reached:
            engine = engine_of(reached)
            try:
                yield engine
            finally:
                engine.dispose()

    @contextmanager
    def queue(self) -> Iterator[Queue]:
        with self.engine() as engine, queue_of(engine, self.described) as queue:
            yield queue


def _target(context: click.Context) -> Target:
    """What the command line means. Raises UsageError or BadMap."""
    # A flag whose variable is 0 is False, which says no more than that it is not given.
    noted = context.meta[NOTED].items()
    given = {name: value for name, value in noted if value is not False and value not in (None, ())}
    url, map_file, table = given.pop("url", None), given.pop("map", None), given.get("table")
    if table is not None and not (table.isprintable() and all(part.strip() for part in table.split("."))):
        raise click.BadParameter(f"{table!r} is no name of a table: give NAME or SCHEMA.NAME", param_hint="--table")
    if given.pop("any_order", False):
        if "order_by" in given:
            raise click.UsageError("--any-order says that there is no order: leave out --order-by, or --any-order")
        given["order_by"] = ()
    retry = {name.removeprefix("retry_"): given.pop(name) for name in list(given) if name.startswith("retry_")}
    keyed = {name.removeprefix("per_key_"): given.pop(name) for name in list(given) if name.startswith("per_key_")}
    if "per_key" in given:
        given["per_key"] = per_key_of("--per-key", {"columns": [name.strip() for name in given["per_key"].split(",")]})
    described = {**(described_in(map_file) if map_file else {}), **given}
    if keyed:
        if "per_key" not in described:
            raise click.UsageError(f"--per-key-{next(iter(keyed)).replace('_', '-')} has no effect without --per-key")
        described["per_key"] = per_key_of("--per-key", keyed, described["per_key"])
    if retry:
        described["retry"] = replace(described.get("retry", Retry()), **retry)
    return Target(url, described)


def next_command(words: str) -> str:
    """A command for the same queue, as a person types it. A URL that is in no variable is only named: it is secret."""
    noted = click.get_current_context().meta[NOTED]
    given = {f"--{name.replace('_', '-')}": value for name in SHARED if (value := noted.get(name))}
    options = [name if value is True else f"{name} {shlex.quote(str(value))}" for name, value in given.items()]
    url = ["--url URL"] if noted.get("url") != os.environ.get("CLAIMJOBS_URL") else []
    return f"`{' '.join(('claimjobs', words, *options, *url))}`"


def _with_target(*options: AnyOption) -> AnyOption:
    """Add these options to a command, which gets what they mean as `target`."""

    def add(command: AnyCommand) -> AnyCommand:
        @wraps(command)
        def run(*arguments: Any, **named: Any) -> Any:
            return command(*arguments, target=_target(click.get_current_context()), **named)

        return with_options(*options)(run)

    return add


database_options = _with_target(URL)
queue_options = _with_target(*DESCRIBING)
claim_options = _with_target(*DESCRIBING, *CLAIMING)
