"""Fill "Ways" in docs/design.md: who calls whom on the way to each statement. Run `python -m docs.make_ways`.

Each way is run on a real server. When a statement is sent, the methods that are running at that moment are noted. So
the lists show the calls that lead to SQL, in the order in which they are made, and leave out all others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.table.definitions import article_table
from tests.backends import Backend, Servers
from tests.conformance.owners import declare_dead, hold_of, still
from tests.conformance.sleepers import PATIENT, Consumer

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- ways -->", "<!-- ways: end -->"
FAMILIES: Final = ("postgres", "mysql")
ENDS_A_WAY: Final = "database/"
"""What a connection does with a statement, or with the end of a transaction, is one call here."""
OTHER_WAYS: Final = ("queue/consumer.py: Consumer.claim", "batch/batch.py: Batch.__exit__")
"""Where a way enters another one of these lists."""
UNCERTAIN: Final = frozenset({"dialects/mysql/sessions.py: _SleepListener._interrupt"})
"""What is only sent at some moments: the end of a consumer's own sleep, which a producer may have ended before."""
TABLES: Final = ("claimjobs_owners", "claimjobs_batches", "jobs")
ROWS: Final = [{"d": "d", "e": "e"}] * 3

Way = Callable[[Backend, Queue, "Trace"], None]


@dataclass
class Call:
    """A method on a way, what it calls, and what it sends."""

    name: str
    calls: dict[str, Call] = field(default_factory=dict)
    sends: list[str] = field(default_factory=list)

    def lines(self, depth: int = 0) -> Iterator[tuple[int, str, str]]:
        """Each call below this one: its depth, its name, and what it sends."""
        for call in self.calls.values():
            yield depth, call.name, ", ".join(call.sends)
            yield from call.lines(depth + 1)


class Trace:
    """Notes who is running when an engine sends a statement or commits."""

    def __init__(self, engine: sa.Engine) -> None:
        self.top = Call("")
        self.engine = engine
        self._listeners: dict[str, Callable[..., Any]] = {
            "before_cursor_execute": lambda _c, _cursor, statement, *_: self._note(_short(statement)),
            "commit": lambda _c: self._note("COMMIT"),
        }

    @contextmanager
    def on(self) -> Iterator[None]:
        """In the block statements are noted."""
        for event, listener in self._listeners.items():
            sa.event.listen(self.engine, event, listener)
        try:
            yield
        finally:
            for event, listener in self._listeners.items():
                sa.event.remove(self.engine, event, listener)

    def _note(self, sent: str) -> None:
        call, running = self.top, _running(sys._getframe())
        if any(name in UNCERTAIN for name in running):
            return
        for depth, name in enumerate(running):
            call = call.calls.setdefault(name, Call(name))
            if depth > 1 and name in OTHER_WAYS:
                return
            if name.startswith(ENDS_A_WAY):
                break
        if sent not in call.sends:
            call.sends.append(sent)


def _running(frame: FrameType | None) -> list[str]:
    """The package's methods that are running, the outermost first."""
    names = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        name = frame.f_code.co_qualname
        if path.is_relative_to(ROOT) and not name.endswith(("<genexpr>", "<listcomp>")):
            place = path.relative_to(ROOT).as_posix()
            if place.startswith(("claimjobs/", "dialects/")):
                names.append(f"{place.removeprefix('claimjobs/')}: {name}")
        frame = frame.f_back
    return names[::-1]


def _short(statement: str) -> str:
    """What a statement does, and the table that it is about."""
    first = statement.split(maxsplit=1)[0]
    words = re.findall(r"(?<!FOR )\b(?:DELETE|INSERT|UPDATE)\b", statement) if first == "WITH" else [first]
    tables = [table for table in TABLES if re.search(rf"\b(?:FROM|INTO|UPDATE|USING) {table}\b", statement)]
    return " ".join([" and ".join(words), *tables[-1:]])


# --- the ways --------------------------------------------------------------------------------------------------------


def _enqueue(backend: Backend, queue: Queue, trace: Trace) -> None:
    with trace.on():
        queue.enqueue(ROWS)


def _claim(backend: Backend, queue: Queue, trace: Trace) -> None:
    with trace.on():
        batch = queue.claim(1)
    batch.settle()


def _settle(backend: Backend, queue: Queue, trace: Trace) -> None:
    batch = queue.claim(1)
    with trace.on(), batch:
        batch.done()


def _settle_and_claim(backend: Backend, queue: Queue, trace: Trace) -> None:
    for batch in queue.batches(1):
        with trace.on(), batch:
            batch.done()
        break


def _reclaim(backend: Backend, queue: Queue, trace: Trace) -> None:
    dead = still(backend.bare_queue(article_table()))
    dead.enqueue(ROWS)
    dead.claim(2)
    declare_dead(backend, dead.owner_id)
    with trace.on():
        hold_of(queue).owner._reclaim_dead()


def _wait(backend: Backend, queue: Queue, trace: Trace) -> None:
    """With a queue of its own, whose heartbeat runs: that thread waits. What calls it is the end of an enqueue."""
    queue.close()
    backend.run("DELETE FROM jobs")
    idle = Queue(trace.engine, article_table(), liveness=PATIENT)
    idle.claim(1).settle()
    with trace.on(), Consumer(backend, idle) as consumer:
        consumer.falls_asleep()
        consumer.queue.stop()
        still(idle)  # its thread has ended, so that the last commit is noted
    idle.close()


def _per_batch(backend: Backend, queue: Queue, trace: Trace) -> None:
    """A claim and a settle with claims per batch, with a queue of its own: all owners must record theirs in one way."""
    queue.close()
    with still(Queue(trace.engine, article_table(), claims="batches")) as other:
        other.claim(1).settle()
        with trace.on(), other.claim(1) as batch:
            batch.done()


WAYS: Final[dict[str, Way]] = {
    "Enqueue": _enqueue,
    "Claim": _claim,
    "Settle": _settle,
    "Settle and claim": _settle_and_claim,
    "Claim and settle, with claims per batch": _per_batch,
    "Reclaim": _reclaim,
    "Wait": _wait,
}


# --- the page --------------------------------------------------------------------------------------------------------


def lists(backend: Backend) -> dict[str, str]:
    """Each way on this database, as a numbered list."""
    backend.make()
    backend.insert("jobs", [{"d": str(number), "e": ""} for number in range(20)])
    return {name: _listed(_traced(backend, way)) for name, way in WAYS.items()}


def _traced(backend: Backend, way: Way) -> Call:
    engine = backend.new_engine()
    trace = Trace(engine)
    with still(Queue(engine, article_table())) as queue:
        queue.claim(1).settle()  # what is built once is there
        way(backend, queue, trace)
    engine.dispose()
    return trace.top


def _listed(top: Call) -> str:
    lines = [
        f"{number:2}  {'  ' * depth}{name}{f'  [{sent}]' if sent else ''}"
        for number, (depth, name, sent) in enumerate(top.lines(), 1)
    ]
    return "\n".join(lines)


def made(parts: dict[str, dict[str, str]]) -> str:
    """The text between the marks: `parts` are the lists of each database. A list that is equal stands once."""
    blocks = []
    for name in WAYS:
        first, *others = ((family, parts[family][name]) for family in parts)
        blocks.append(f"**{name}**\n\n```text\n{first[1]}\n```")
        blocks += [f"{name} on {family}:\n\n```text\n{ways}\n```" for family, ways in others if ways != first[1]]
    return "\n\n".join(blocks)


def filled(page: str, parts: dict[str, dict[str, str]]) -> str:
    """The page with these lists between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{made(parts)}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Write the page."""
    servers = Servers()
    parts = {}
    try:
        for family in FAMILIES:
            backend = servers.lend(family)
            parts[family] = lists(backend)
            backend.close()
    finally:
        servers.close()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")


if __name__ == "__main__":
    main()
