"""Options that describe the queue: the table, a map of its columns, and the parameters of Queue that are plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from claimjobs.cli.next_step import remember
from claimjobs.cli.options import AnyCommand, Anywhere
from claimjobs.options import CLAIMS, HOLDS
from claimjobs.queue.map_file import Described, described_in
from claimjobs.table.definitions import DEFAULT_TABLE
from claimjobs.table.on_done import FINISHES, LEAVE

OURS: Final = "queue_"
"""The prefix of these options' parameter names: a command may have options of the same name, such as `--where`."""


def _option(name: str, **attributes: Any) -> Callable[[AnyCommand], AnyCommand]:
    return click.option(f"--{name}", OURS + name.replace("-", "_"), **attributes)


def _shared(name: str, **attributes: Any) -> Callable[[AnyCommand], AnyCommand]:
    """An option with one meaning for all commands, and so with one environment variable."""
    return _option(name, envvar=f"CLAIMJOBS_{name.replace('-', '_').upper()}", **attributes)


OPTIONS: Final = (
    _shared(
        "table",
        cls=Anywhere,
        callback=lambda _context, option, given: _name(option, given),
        show_default=DEFAULT_TABLE,
        metavar="NAME | MODULE:ATTRIBUTE",
        help="The table of jobs: its name, or the place of its Table or mapped class in Python.",
    ),
    _shared(
        "map",
        cls=Anywhere,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A TOML file that describes the queue: table, [columns], [states] and more. Options take precedence.",
    ),
    _shared(
        "hold",
        type=click.Choice(HOLDS),
        help="What holds a claim: its owner's lease (the default), or an open transaction, without an owner.",
    ),
    _shared(
        "claims",
        type=click.Choice(CLAIMS),
        help="Where a claim is recorded: in the row of each job (the default), or as one row for its batch (with "
        "--side-car always).",
    ),
    _shared(
        "side-car",
        is_flag=True,
        default=None,
        help="Store outcomes in a second table.",
    ),
)
"""The options for every command."""

MORE: Final = (
    _option("where", metavar="SQL", help="Only jobs for which this holds; SQL as after WHERE."),
    _option(
        "order-by",
        multiple=True,
        metavar="COLUMN",
        help="The order of jobs: a column, `-column` for the highest first, or SQL. Can be repeated.",
    ),
    _option(
        "any-order",
        is_flag=True,
        help="Claim in no order: each consumer begins at a place of its own, and disturbs the others less.",
    ),
    _option(
        "on-done",
        type=click.Choice((*FINISHES, LEAVE)),
        help="What happens to done jobs. Default: kept, but deleted if claimjobs made the table.",
    ),
)
"""The other options, for commands that claim."""


def _name(option: click.Parameter, given: str | None) -> str | None:
    if given is not None and not (given.isprintable() and all(part.strip() for part in given.split("."))):
        raise click.BadParameter(f"{given!r} is no name of a table: give NAME or SCHEMA.NAME", param=option)
    return given


def queue_options(command: AnyCommand) -> AnyCommand:
    """Add the options that describe the queue; the command gets what they and the map say as `described`."""
    return _with_options(command, OPTIONS)


def claim_options(command: AnyCommand) -> AnyCommand:
    """Add the options that describe the queue, and those for claims."""
    return _with_options(command, (*OPTIONS, *MORE))


def _with_options(command: AnyCommand, options: Iterable[Callable[[AnyCommand], AnyCommand]]) -> AnyCommand:
    @wraps(command)
    def run(*arguments: Any, **named: Any) -> Any:
        ours = [name for name in named if name.startswith(OURS)]
        given = {name.removeprefix(OURS): named.pop(name) for name in ours}
        remember(click.get_current_context(), given)
        return command(*arguments, described=described_by(given.pop("map"), **given), **named)

    wrapped: AnyCommand = run
    for option in reversed(tuple(options)):
        wrapped = option(wrapped)
    return wrapped


def described_by(
    map_file: Path | None, *, order_by: tuple[str, ...] = (), any_order: bool = False, **others: Any
) -> Described:
    """What the map says, if one is given, changed by the options. Raises BadMap or UsageError."""
    if any_order and order_by:
        raise click.UsageError("--any-order says that there is no order: leave out --order-by, or --any-order")
    options = {**others, "order_by": () if any_order else order_by or None}
    given = {name: value for name, value in options.items() if value is not None}
    return {**({} if map_file is None else described_in(map_file)), **given}
