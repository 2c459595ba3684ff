"""Options that many commands have: their types, their environment variables, and those before a command's name.

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

AnyCommand = Callable[..., Any]
AnyOption = Callable[[AnyCommand], AnyCommand]

# --- types ---------------------------------------------------------------------------------------------------

MOST: Final = 2**31 - 1
"""The columns that are compared with a number hold no larger one."""
COUNT: Final = click.IntRange(0, MOST)
AT_LEAST_1: Final = click.IntRange(1, MOST)
LONGEST: Final = 31_622_400.0
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
        super().__init__(least or 0, LONGEST, min_open=least is None)


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


# --- environment variables -----------------------------------------------------------------------------------


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


# --- options -------------------------------------------------------------------------------------------------

NOTED: Final = "claimjobs.noted"
"""The key in `meta` of the values of options that describe the queue, by their names."""


def describing(name: str, **attributes: Any) -> AnyOption:
    """An option that describes the database or the queue. Its value is noted, and is no argument of the command."""
    return click.option(f"--{name}", callback=_note, expose_value=False, **attributes)


def shared(name: str, **attributes: Any) -> AnyOption:
    """One with the same meaning for all commands, and so with one environment variable."""
    return describing(name, envvar=_variable(name), **attributes)


def _note(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Note the value that stands last on the command line; of an option that does not, its variable or default."""
    noted, name = context.meta.setdefault(NOTED, {}), option.name or ""
    if name not in noted or context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        noted[name] = value
    if name == "url" and value:
        context.meta.setdefault(URLS, []).append(value)


URL: Final = shared(
    "url",
    metavar="URL",
    help="mysql://user:password@host/database or postgresql://...; also CLAIMJOBS_URL, which other users of the "
    "machine cannot read. Without one: an embedded Postgres. An empty URL is an error, because its variable may be "
    "missing.",
)
TABLE: Final = shared(
    "table",
    metavar="NAME | MODULE:ATTRIBUTE",
    show_default="jobs",
    help="The table of jobs: its name, or the place of its Table or mapped class in Python.",
)
MAP: Final = shared(
    "map",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A TOML file that describes the queue: table, [columns], [states] and more. Options take precedence.",
)


def with_options(command: AnyCommand, *options: AnyOption) -> AnyCommand:
    """The command with these options, in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def options_before(group: AnyCommand) -> AnyCommand:
    """Add `--url`, `--table` and `--map` to a group: they are for the command that follows."""
    return with_options(group, URL, TABLE, MAP)


def port(name: str, pages: str, *, required: bool = False) -> AnyOption:
    """An option for the port on which these pages are served."""
    words = f"Serve {pages} on this port; 0: any free one."
    return click.option(name, type=click.IntRange(0, 65_535), metavar="PORT", required=required, help=words)


def bind(command: AnyCommand) -> AnyCommand:
    """Add `--bind`, the address of the ports of a command."""
    words = "The address to listen on; 0.0.0.0: all addresses of the machine."
    return click.option("--bind", default="127.0.0.1", metavar="ADDRESS", help=words)(command)
