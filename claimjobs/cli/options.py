"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from claimjobs.cli.console import URLS, say

if TYPE_CHECKING:
    import sqlalchemy as sa

    from claimjobs.queue import Queue
    from claimjobs.retry import Retry
    from claimjobs.shape import Shape

Command = Callable[..., Any]


def url_option(command: Command) -> Command:
    """`--url`, or CLAIMJOBS_URL; without either, the embedded Postgres."""
    return click.option(
        "--url",
        envvar="CLAIMJOBS_URL",
        metavar="URL",
        callback=_remember,
        help="mysql://user:password@host/database or postgresql://...; also CLAIMJOBS_URL, which other users of the "
        "machine cannot read. Without one: an embedded Postgres.",
    )(command)


def _remember(context: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    if url:
        context.meta.setdefault(URLS, []).append(url)
    return url


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """The URL to work with: the one given, or that of the embedded Postgres, which runs until the block is left.

    Raises EmbeddedFailed.
    """
    if url:
        yield url
        return
    from claimjobs import embedded  # noqa: PLC0415 - only who needs it pays for it

    with embedded.running(say) as own:
        yield own


@contextmanager
def engine_for(url: str | None) -> Iterator[sa.Engine]:
    """An engine for the database to work with, its connections closed when the block is left."""
    from claimjobs.connect import engine_of  # noqa: PLC0415 - SQLAlchemy is slow to import, and --help needs none

    with database(url) as reached:
        engine = engine_of(reached)
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def queue_for(url: str | None, shape: Shape, retry: Retry | None = None) -> Iterator[Queue]:
    """The queue to work with."""
    with engine_for(url) as engine, shape.queue(engine, retry=retry) as queue:
        yield queue
