"""Options that several commands share, and the engine and the Queue that they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from claimjobs.cli.console import URLS, say

if TYPE_CHECKING:
    import sqlalchemy as sa

    from claimjobs.options import Retry
    from claimjobs.queue.map_file import Described
    from claimjobs.queue.queue import Queue

AnyCommand = Callable[..., Any]


BEFORE = "claimjobs.before"
"""The key in `meta` of the options that stood before a command's name."""

TABLE, MAP = "queue_table", "queue_map"
"""The parameter names of the options in `queue_options` that may stand there."""


class Anywhere(click.Option):
    """An option that may also stand before the command's name. The later one counts, then the environment."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        before = ctx.meta.get(BEFORE, {})
        if source is not ParameterSource.COMMANDLINE and self.name in before:
            return before[self.name], ParameterSource.COMMANDLINE
        return value, source


def options_before(command: AnyCommand) -> AnyCommand:
    """`--url`, `--table` and `--map` of a group. They are for the command that follows."""
    table = _before("--table", TABLE, metavar="NAME | MODULE:ATTRIBUTE", help="The table of jobs.")
    map_ = _before("--map", MAP, metavar="FILE", help="A file that describes the queue.")
    url = _before("--url", "url", metavar="URL", help="The database.")
    return url(table(map_(command)))


def _before(name: str, inside: str, **attributes: Any) -> Callable[[AnyCommand], AnyCommand]:
    variable = f"CLAIMJOBS_{name.removeprefix('--').upper()}"
    return click.option(
        name, inside, cls=Anywhere, envvar=variable, expose_value=False, callback=_note_before, **attributes
    )


def _note_before(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(BEFORE, {})[option.name] = value
    if option.name == "url":
        remember_url(context, option, value)


def with_variables(command: click.Command, *path: str) -> click.Command:
    """The command, with an environment variable for each option, which its help shows."""
    for option in command.params:
        if isinstance(option, click.Option) and option.name != "version":
            option.envvar = option.envvar or _variable(*path, max(option.opts, key=len))
            option.show_envvar = True
    for name, below in command.commands.items() if isinstance(command, click.Group) else ():
        with_variables(below, *path, name)
    return command


def _variable(*words: str) -> str:
    return "_".join(("CLAIMJOBS", *(word.removeprefix("--").replace("-", "_").upper() for word in words)))


def url_option(command: AnyCommand) -> AnyCommand:
    """`--url`, or CLAIMJOBS_URL; without either, the embedded Postgres."""
    return click.option(
        "--url",
        cls=Anywhere,
        envvar="CLAIMJOBS_URL",
        metavar="URL",
        callback=remember_url,
        help="mysql://user:password@host/database or postgresql://...; also CLAIMJOBS_URL, which other users of the "
        "machine cannot read. Without one: an embedded Postgres. An empty URL is an error, because its variable may be "
        "missing.",
    )(command)


def _not_empty(context: click.Context, option: click.Parameter, url: str | None) -> str | None:
    if url is not None and not url.strip():
        raise click.BadParameter("it is empty: give a URL, or leave the option out", param=option)
    return remember_url(context, option, url)


def remember_url(context: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    """Remember a URL, whose password must be in no message."""
    if url:
        context.meta.setdefault(URLS, []).append(url)
    return url


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """The given URL, or that of the embedded Postgres, which runs until the block is left.

    Raises EmbeddedFailed, and UnknownDatabase for an empty URL.
    """
    from claimjobs.embedded.server import database_url  # noqa: PLC0415 - SQLAlchemy is slow to import

    with database_url(url, say) as reached:
        yield reached


@contextmanager
def engine_for(url: str | None) -> Iterator[sa.Engine]:
    """An engine for the database. Its connections are closed when the block is left."""
    from claimjobs.database.connect import engine_of  # noqa: PLC0415 - SQLAlchemy is slow to import, and --help needs none

    with database(url) as reached:
        engine = engine_of(reached)
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def queue_for(url: str | None, described: Described, retry: Retry | None = None) -> Iterator[Queue]:
    """The Queue of this command."""
    from claimjobs.queue.map_file import queue_of  # noqa: PLC0415 - SQLAlchemy is slow to import

    with engine_for(url) as engine, queue_of(engine, described, retry=retry) as queue:
        yield queue
