"""Held: what the model says of runs that were made, beside what was measured.

From CPU costs, on the cores that consumers and server shared: `drain`, `batch_size`, and one consumer behind a delay
(`round_trip`) or with a slow handler (`slow_handlers`). From runs without a handler, which stand for the whole machine
with its neighbours: `with_handlers`. Of other batches and more consumers behind a delay: `latency`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import latency
from benchmarks.article import BATCH
from benchmarks.contestants import OURS
from benchmarks.report import Figure
from benchmarks.scale.costs import LATENCY, NAMES, TWO, WITH_HANDLERS, Results
from benchmarks.scale.model import Cores, Curve, Measured, throughput
from benchmarks.with_handlers import BATCH as SIZE
from benchmarks.with_handlers import HANDLER

FEW = (2, 4)
"""Consumers on the two cores of these runs."""


@dataclass(frozen=True)
class Held:
    """A run and its prediction."""

    claims: str
    batch: int
    handler_ms: float
    """For a batch."""
    delay_ms: float
    """For each request of a consumer."""
    consumers: int
    measured: float
    """Jobs a second."""
    predicted: float

    @property
    def error(self) -> float:
        """Of what was measured: above 0 the model promises too much."""
        return self.predicted / self.measured - 1


def drains(results: Results, *, competing: bool = True) -> Iterator[Held]:
    """Without a handler, in batches of 100. Not `competing`: from the costs of one consumer, as if nobody made a turn
    of another dearer.
    """
    drain = results.found("drain")
    for claims, name in NAMES.items():
        costs = results.costs(claims, BATCH)
        demand = costs.both if competing else Curve(costs.both.points[:1])
        for consumers in map(int, drain.places(name)):
            predicted = throughput(consumers, costs.commit, Cores(results.cores, demand)) * BATCH
            yield Held(claims, BATCH, 0, 0, consumers, drain.value(name, consumers), predicted)


def by_batch(results: Results) -> Iterator[Held]:
    """Two consumers without a handler, in batches of other sizes."""
    found = results.found("batch_size")
    for claims, name in NAMES.items():
        for batch in map(int, found.places(name)):
            costs = results.costs(claims, batch)
            predicted = throughput(TWO, costs.commit, Cores(results.cores, costs.both)) * batch
            yield Held(claims, batch, 0, 0, TWO, found.value(name, batch), predicted)


def alone(results: Results) -> Iterator[Held]:
    """One consumer that is often away: behind a delay, or with a slow handler."""
    costs = results.costs("rows", BATCH)
    station = Cores(results.cores, costs.both)
    trips = results.found("round_trip")
    for delay in trips.places(OURS):
        predicted = throughput(1, costs.commit + costs.trips * delay / 1000, station) * BATCH
        yield Held("rows", BATCH, 0, delay, 1, trips.value(OURS, delay), predicted)
    for handler, measured in _slow(results):
        yield Held(
            "rows", BATCH, handler * 1000, 0, 1, measured, throughput(1, costs.commit + handler, station) * BATCH
        )


def _slow(results: Results) -> Iterator[tuple[float, float]]:
    """Of handlers with as large a batch their own seconds for it, and jobs a second."""
    sizes, found = results.records["slow_handlers"].facts["sizes"], results.found("slow_handlers")
    for milliseconds, batch, batches in zip(sizes["milliseconds"], sizes["batch"], sizes["batches"], strict=True):
        if batch == BATCH:
            of_all = found.also(OURS, milliseconds, "handler s")
            yield of_all / batches, found.also(OURS, milliseconds, "jobs/s")


def with_handlers(results: Results) -> Iterator[Held]:
    """From the runs of the same batch without a handler. Nothing if there are none."""
    if WITH_HANDLERS not in results.records:
        return
    figures = results.records[WITH_HANDLERS].figures
    for batch in dict.fromkeys(int(_number(figure, SIZE)) for figure in figures):
        of_this = [figure for figure in figures if _number(figure, SIZE) == batch]
        machine = Measured(Curve([(f.at, f.value / batch) for f in of_this if not _number(f, HANDLER)]))
        for figure in of_this:
            if handler_ms := _number(figure, HANDLER):
                predicted = throughput(int(figure.at), handler_ms / 1000, machine) * batch
                yield Held("rows", batch, handler_ms, 0, int(figure.at), figure.value, predicted)


def far_away(results: Results) -> Iterator[Held]:
    """One consumer and several behind a delay, of batches and kinds of claims whose costs are known."""
    if LATENCY not in results.records:
        return
    for figure in results.records[LATENCY].figures:
        claims, batch = str(figure.also[latency.RECORDED]), int(_number(figure, latency.BATCH))
        consumers, added = int(_number(figure, latency.CONSUMERS)), _number(figure, latency.ADDED)
        costs = results.costs(claims, batch)
        away = costs.commit + costs.trips * added / 1000
        predicted = throughput(consumers, away, Cores(results.cores, costs.both)) * batch
        yield Held(claims, batch, 0, added, consumers, figure.value, predicted)


def _number(figure: Figure, heading: str) -> float:
    value = figure.also[heading]
    assert isinstance(value, float | int)
    return value


def groups(results: Results) -> Iterator[tuple[str, Sequence[Held]]]:
    """The runs by what they have in common."""
    drained, one = list(drains(results)), list(alone(results))
    yield "drain, one consumer", [run for run in drained if run.consumers == 1]
    yield "drain, two and four", [run for run in drained if run.consumers in FEW]
    yield "drain, eight and ten", _of_many(drained)
    yield "drain, eight and ten, from the costs of one", _of_many(drains(results, competing=False))
    yield "drain, two, batches of 10 to 1,000", list(by_batch(results))
    yield "one consumer, 1 to 10 ms away", [run for run in one if run.delay_ms]
    far = list(far_away(results))
    for consumers in sorted({run.consumers for run in far}):
        yield (
            f"{consumers} at 0.1 to 10 ms, batches of 10 to 1,000",
            [run for run in far if run.consumers == consumers],
        )
    yield "one consumer, a slow handler", [run for run in one if run.handler_ms]
    yield "one to eight consumers, handlers of 10 and 50 ms a batch", list(with_handlers(results))


def _of_many(runs: Iterable[Held]) -> list[Held]:
    return [run for run in runs if run.consumers > max(FEW)]


def spread(runs: Sequence[Held]) -> tuple[str, ...]:
    """Of the errors the least, the median and the most; nothing of no runs."""
    errors = [run.error for run in runs]
    return tuple(f"{error:+.0%}" for error in (min(errors), median(errors), max(errors))) if errors else ("-",) * 3


def lines(runs: Sequence[Held]) -> Iterator[tuple[str, ...]]:
    """A table, the heading first."""
    yield ("claims", "batch", "handler, ms a batch", "delay, ms", "consumers", "measured", "predicted", "error")
    for run in runs:
        yield (
            run.claims,
            f"{run.batch:,}",
            f"{run.handler_ms:.3g}",
            f"{run.delay_ms:g}",
            f"{run.consumers}",
            f"{run.measured:,.0f}",
            f"{run.predicted:,.0f}",
            f"{run.error:+.0%}",
        )
