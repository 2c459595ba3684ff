"""What `claimjobs watch` draws: a queue on a terminal of any size, or as a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from claimjobs.admin.overview import COUNTED, FailedJob, History, Overview, outlook
from claimjobs.cli.console import number
from claimjobs.instants import age
from claimjobs.key_text import key_in_message, visible

KEYS: Final = "p pause   r resume   t retry   c cancel   q quit"
BARS: Final = "▁▂▃▄▅▆▇█"
ABOVE_OWNERS: Final = 8
"""Lines above the owners: the headline, the states, how long the oldest waits, and blank lines."""


def line(seen: Overview, history: History) -> str:
    """The queue in one line."""
    owners = ", ".join(f"{count:,} {life}" for life, count in seen.backlog.owners.items() if count)
    parts = [
        *(f"{seen.count(state)} {state}" for state in COUNTED),
        *outlook(seen, history),
        *([f"owners: {owners}"] if owners else []),
        *([f"job {_named(seen.retrying[0])}"] if seen.retrying else []),
    ]
    paused = f"paused for {age(seen.paused)}{_reason(seen)}, " if seen.paused is not None else ""
    return f"{seen.now:%H:%M:%S} {seen.table}: {paused}{', '.join(parts)}"


def _named(failed: FailedJob) -> str:
    times = "" if failed.failures is None else f" ({number(failed.failures, 'failure')})"
    return f"{key_in_message(failed.key)}{times}: {_one_line(failed.error)}"


def _one_line(error: str) -> str:
    return visible(" ".join(error.split()))


def sparkline(values: Sequence[int], width: int) -> str:
    """The last values as bars, one for each column; the highest is the largest of them."""
    shown = values[-width:]
    most = max(shown, default=0)
    return "".join(BARS[round((len(BARS) - 1) * value / most)] if most else BARS[0] for value in shown)


class WatchScreen:
    """A queue, drawn to fit the terminal: the states always, owners, keys and dead jobs as far as there is room."""

    def __init__(self, seen: Overview, history: History, *, asks: str | None = None) -> None:
        """`asks`: the question in the last line; None: which keys there are."""
        self._seen, self._history, self._asks = seen, history, asks

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        seen, room = self._seen, (options.height or console.size.height) - ABOVE_OWNERS - 1
        keys = min(len(seen.keys), room // 3)
        room -= keys + 2 if keys > 0 else 0
        most = max(0, room // 3, room - len(seen.owners) - 4)
        dead = min(len(seen.dead), max(most // 2, most - len(seen.retrying)))
        failed = [*seen.retrying[: most - dead], *seen.dead[:dead]]
        owners = room - 1 - (len(failed) + 2 if failed else 0)
        parts: list[Any] = [self._headline(), Text(), self._states(options.max_width)]
        parts += [_cut(Text(" · ".join(outlook(seen, self._history)))), Text(), self._owners(owners)]
        if keys > 0:
            parts += [Text(), self._keys(keys)]
        if failed:
            parts += [Text(), self._failed(failed)]
        last = Text(self._asks or KEYS, "bold" if self._asks else "dim", no_wrap=True, overflow="ellipsis")
        layout = Layout()
        layout.split_column(Layout(Group(*parts)), Layout(last, size=1))
        yield layout

    def _headline(self) -> Text:
        seen = self._seen
        state, style = ("running", "green") if seen.has_consumers else ("no consumer is running", "yellow")
        if seen.paused is not None:
            state, style = f"paused for {age(seen.paused)}{_reason(seen)}", "yellow"
        return _cut(
            Text.assemble(
                (visible(seen.table), "bold cyan"), "  ", (state, style), f"  {seen.now:%Y-%m-%d %H:%M:%S} UTC"
            )
        )

    def _states(self, width: int) -> Table:
        table = _table(("state", "left"), ("jobs", "right"), ("change/s", "right"), ("", "left"))
        for state in COUNTED:
            values = [jobs for _, jobs in self._history.counts(state)]
            change = self._history.shown_change(state)
            table.add_row(state, self._seen.count(state), change, sparkline(values, max(0, width - 40)))
        return table

    def _owners(self, most: int) -> Table | Text:
        owners = self._seen.dead_owners_first
        if not owners:
            return Text("no owner is registered: nobody claims by lease", style="dim")
        table = _table(
            ("owner", "right"), ("host:pid", "left"), ("holds", "right"), ("heartbeat", "right"), ("", "left")
        )
        for owner in owners[: max(0, most - (len(owners) > most))]:
            style = "red" if owner.dead else None
            where = f"{visible(owner.host)}:{owner.pid}"
            table.add_row(str(owner.id), where, f"{owner.jobs:,}", f"{age(owner.silence)} ago", owner.life, style=style)
        if len(owners) > most > 0:
            table.add_row("", f"{len(owners) - most + 1:,} more", "", "", "")
        return table

    def _keys(self, most: int) -> Table:
        table = _table(("key", "left"), ("holds", "right"), ("its turn", "left"))
        for key in self._seen.keys[:most]:
            style = "yellow" if key.is_held_back else None
            table.add_row(key_in_message(key.key), f"{key.jobs:,}", key.when, style=style)
        return table

    def _failed(self, jobs: Sequence[FailedJob]) -> Table:
        table = _table(("failed job", "left"), ("failures", "right"), ("next try", "left"), ("last error", "left"))
        for job in jobs:
            failures = "" if job.failures is None else str(job.failures)
            when, style = ("dead", "red") if job in self._seen.dead else (job.when, "yellow")
            table.add_row(key_in_message(job.key), failures, when, _one_line(job.error), style=style)
        return table


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for title, justify in columns:
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    return table


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _reason(seen: Overview) -> str:
    return f" ({visible(seen.pause_reason)})" if seen.pause_reason else ""
