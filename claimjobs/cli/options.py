"""Options that several commands have: their types, their environment variables, and what describes a queue.

SQLAlchemy is not imported here: it is slow to import, and `claimjobs --help` needs none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from claimjobs.cli.console import URLS
from claimjobs.instants import duration_of
from claimjobs.options import CLAIMS, FINISHES, HOLDS, LEAVE, Retry

AnyCommand = Callable[..., Any]
AnyOption = Callable[[AnyCommand], AnyCommand]

# --- types ---------------------------------------------------------------------------------------------------

LARGEST_NUMBER: Final = 2**31 - 1
"""The columns that are compared with a number hold no larger one."""
COUNT: Final = click.IntRange(0, LARGEST_NUMBER)
AT_LEAST_1: Final = click.IntRange(1, LARGEST_NUMBER)
LONGEST_SECONDS: Final = 31_622_400.0
"""A year, in seconds. Timers of the system accept no longer durations."""


class Number(click.FloatRange):
    """A number within bounds. click alone accepts NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class Seconds(Number):
    """A duration from `least` on; without it above 0."""

    name = "seconds"

    def __init__(self, least: float | None = None) -> None:
        super().__init__(least or 0, LONGEST_SECONDS, min_open=least is None)


class Text(click.types.StringParamType):
    """A text that a driver can send. The bytes of a terminal or a script in another encoding are no such text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(super().convert(value, param, ctx))
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(
                "it is not UTF-8: write it in that encoding, in a locale that has it, such as LC_ALL=C.UTF-8",
                param,
                ctx,
            )
        return text


if TYPE_CHECKING:
    Parameter = click.ParamType[timedelta]
else:
    Parameter = click.ParamType  # generic since click 8.4


class Duration(Parameter):
    """A number and a unit: 90s, 15m, 12h, 7d, 2w."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        found = duration_of(value)
        if found is None:
            step = "write a number and a unit, such as 90s, 15m, 12h, 7d or 2w"
            self.fail(f"{value!r} is no duration, or too long: {step}")
        return found


# --- what describes the database and the queue -----------------------------------------------------------------

NOTED: Final = "claimjobs.noted"
"""The key in `meta` of the values of options that describe the queue, by their names."""


def with_variables(command: click.Command, *path: str) -> click.Command:
    """The command, with an environment variable for each option, which its help shows. Each text is a `Text`."""
    for option in command.params:
        if isinstance(option.type, click.types.StringParamType):
            option.type = Text()
        if isinstance(option, click.Option) and option.name != "version":
            words = "_".join(("CLAIMJOBS", *path, max(option.opts, key=len).removeprefix("--")))
            option.envvar = option.envvar or words.replace("-", "_").upper()
            option.show_envvar = True
    for name, below in command.commands.items() if isinstance(command, click.Group) else ():
        with_variables(below, *path, name)
    return command


def _describing(name: str, words: str, **attributes: Any) -> AnyOption:
    """An option that describes the database or the queue. Its value is noted, and is no argument of the command."""
    return click.option(f"--{name}", callback=_note, expose_value=False, help=words, **attributes)


def _shared(name: str, words: str, **attributes: Any) -> AnyOption:
    """An option with the same meaning for all commands, and so with one environment variable."""
    return _describing(name, words, envvar=f"CLAIMJOBS_{name.replace('-', '_').upper()}", **attributes)


def _note(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Note the value that stands last on the command line; of an option that does not, its variable or default."""
    noted, name = context.meta.setdefault(NOTED, {}), option.name or ""
    if name not in noted or context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        noted[name] = value
    if name == "url" and value:
        context.meta.setdefault(URLS, []).append(value)


URL: Final = _shared(
    "url",
    "mysql://user:password@host/database or postgresql://...; also CLAIMJOBS_URL, which other users of the "
    "machine cannot read. Without one: an embedded Postgres. An empty URL is an error, because its variable may be "
    "missing.",
    metavar="URL",
)
TABLE: Final = _shared(
    "table",
    "The table of jobs: its name, or the import path of its Table or mapped class.",
    metavar="NAME | MODULE:ATTRIBUTE",
    show_default="jobs",
)
MAP: Final = _shared(
    "map",
    "A TOML file that describes the queue: table, [columns], [states] and more. Options take precedence.",
    type=click.Path(path_type=Path),
    metavar="FILE",
)
DESCRIBING: Final = (
    URL,
    TABLE,
    MAP,
    _shared(
        "hold",
        "What holds a claim: its owner's lease (the default), or an open transaction, without an owner.",
        type=click.Choice(HOLDS),
    ),
    _shared(
        "claims",
        "Where a claim is recorded: in the row of each job (the default), or as one row for its batch (with "
        "--side-car always).",
        type=click.Choice(CLAIMS),
    ),
    _shared("side-car", "Store outcomes in a second table.", is_flag=True, default=None),
    _shared(
        "per-key",
        "Let the values of this column take turns, with limits, an order or a rate for each.",
        metavar="COLUMN[,COLUMN]",
    ),
)
"""The options of every command that works on a queue."""
CLAIMING: Final = (
    _describing("where", "Only jobs for which this holds; SQL as after WHERE.", metavar="SQL"),
    _describing(
        "order-by",
        "The order of jobs: a column, `-column` for the highest first, or SQL. Can be repeated.",
        multiple=True,
        metavar="COLUMN",
    ),
    _describing(
        "any-order",
        "Claim in no order: each consumer begins at a place of its own, and disturbs the others less.",
        is_flag=True,
        default=None,
    ),
    _describing(
        "per-key-at-most",
        "With --per-key: so many jobs of one value are claimed at once.",
        type=AT_LEAST_1,
        metavar="N",
    ),
    _describing(
        "per-key-in-order",
        "With --per-key: the jobs of one value are done one after the other, in their order, also if one fails.",
        is_flag=True,
        default=None,
    ),
    _describing(
        "per-key-rate",
        "With --per-key: so many jobs of one value are claimed in a time: 10/s, 100/min, 5/h or 1/d.",
        metavar="N/s",
    ),
    _describing(
        "on-done",
        "What happens to done jobs. Default: kept, but deleted if claimjobs made the table.",
        type=click.Choice((*FINISHES, LEAVE)),
    ),
)
"""The other options, for commands that claim."""
RETRYING: Final = (
    _describing(
        "retry-attempts",
        "Failures after which a job is dead; with `reclaim` also the death of an owner that held that job alone.",
        type=AT_LEAST_1,
        show_default=str(Retry.attempts),
    ),
    _describing(
        "retry-base",
        "The longest wait after the first failure of a job. It doubles with each further one.",
        type=Seconds(0),
        metavar="SECONDS",
        show_default=f"{Retry.base:g}",
    ),
    _describing(
        "retry-cap",
        "The longest wait of a job that failed.",
        type=Seconds(0),
        metavar="SECONDS",
        show_default=f"{Retry.cap:g}",
    ),
)
"""How a failed job runs again, for commands that fail jobs. A map has them in its section [retry]."""


# --- how a command gets options --------------------------------------------------------------------------------


def with_options(*options: AnyOption) -> AnyOption:
    """Add these options to a command, in this order."""

    def add(command: AnyCommand) -> AnyCommand:
        for option in reversed(options):
            command = option(command)
        return command

    return add


options_before = with_options(URL, TABLE, MAP)
"""Options of a group, for the command that follows."""
retry_options = with_options(*RETRYING)


def _address(_context: click.Context, _option: click.Parameter, given: str) -> str:
    if not given.strip():  # the system takes it for all addresses
        raise click.BadParameter("it is empty, because its variable may be missing: give an address, or leave it out")
    return given


bind = click.option(
    "--bind",
    callback=_address,
    default="127.0.0.1",
    metavar="ADDRESS",
    help="The address to listen on; 0.0.0.0: all addresses of the machine.",
)
"""The address of the ports of a command."""


def port(name: str, pages: str, *, required: bool = False) -> AnyOption:
    """An option for the port on which these pages are served."""
    words = f"Serve {pages} on this port; 0: any free one."
    return click.option(name, type=click.IntRange(0, 65_535), metavar="PORT", required=required, help=words)
