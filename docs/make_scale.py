"""Put the figures of `benchmarks.scale` into docs/scaling.md, and draw its pictures.

`python -m docs.make_scale` in the repository, after the files in benchmarks/results were made anew. What stands between
a pair of marks is made, everything else on the page is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks import chart
from benchmarks.chart import Chart, Line
from benchmarks.report import Figure
from benchmarks.scale import held, sizes
from benchmarks.scale.costs import LATENCY, NAMES, Results, read
from benchmarks.scale.sizes import Primary, size
from docs.make_benchmarks import IMAGES, NOTHING, markdown

PAGE: Final = Path(__file__).with_name("scaling.md")
BACKENDS: Final = ("postgres", "mysql")
BATCHES: Final = (10, 100, 1_000)
PRIMARY: Final = Primary(cores=4, round_trip=0.0005)
"""Of which the tables and the picture are."""
CONSUMERS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
DRAWN_MS: Final = 1
"""The handler of the picture, for a job."""
HANDLER_MS: Final = 10.0
"""The handler of the steps, for a job."""
RATES: Final = (1_000, 5_000, 20_000, 50_000, 100_000)
"""Jobs a second that are wanted."""
CONNECTIONS: Final = {"postgres": 97, "mysql": 151}
"""That a server allows to ordinary users by default."""


def page(text: str) -> str:
    """The page with everything between its marks made anew."""
    servers = [read(backend) for backend in BACKENDS]
    parts = {
        "rates": _rates(servers),
        "steps": _steps(servers),
        "sizes": _sizes(servers),
        "held": _held(servers),
        "latency": _latency(servers),
    }

    def made(match: re.Match[str]) -> str:
        return f"{match['begin']}\n\n{parts[match['name']]}\n\n{match['end']}"

    marks = r"(?P<begin><!-- scale: (?P<name>\w+) -->)\n.*?(?P<end><!-- scale: end -->)"
    return re.sub(marks, made, text, flags=re.DOTALL)


def pictures() -> dict[str, str]:
    """The SVGs, by name."""
    servers = [read(backend) for backend in BACKENDS]
    return {
        "scale-sizes.svg": chart.svg([_growth(results) for results in servers]),
        "scale-held.svg": chart.svg([_drains(results) for results in servers]),
    }


# --- which step, from which size on --------------------------------------------------------------------------


def _rates(servers: Sequence[Results]) -> str:
    heading = ("jobs/s, 10 ms a job", *(results.title for results in servers))
    return markdown([heading, *((f"{rate:,}", *(_step(results, rate) for results in servers)) for rate in RATES)])


def _step(results: Results, rate: int) -> str:
    found = sizes.step_for(results, rate, PRIMARY.round_trip, HANDLER_MS / 1000)
    if found is None:
        return f"more than {sizes.CORES[-1]} cores: several queues"
    claims = ", claims per batch" if found.claims == "batches" else ""
    what = f"{found.cores} cores, batches of {found.batch:,}{claims}"
    return f"{what}: {_round(found.consumers)} consumers, log {_round(found.log_megabytes)} MB/s"


def _steps(servers: Sequence[Results]) -> str:
    heading = ("on a primary of its own with four cores, 10 ms a job", *(results.title for results in servers))
    rows = [
        ("batches of 10 carry", *(_carried(results, "rows", 10) for results in servers)),
        ("batches of 100", *(_carried(results, "rows", 100) for results in servers)),
        ("batches of 1,000", *(_carried(results, "rows", 1_000) for results in servers)),
        ("batches of 1,000, claims per batch", *(_carried(results, "batches", 1_000) for results in servers)),
        ("as many consumers as connections by default, batches of 100", *(_connected(results) for results in servers)),
    ]
    return markdown([heading, *rows])


def _carried(results: Results, claims: str, batch: int) -> str:
    found = size(results, claims, batch, PRIMARY)
    consumers = _round(found.consumers[HANDLER_MS])
    return f"{_round(found.jobs)} jobs/s, {consumers} consumers, log {_round(found.log_megabytes)} MB/s"


def _connected(results: Results) -> str:
    consumers = CONNECTIONS[results.backend]
    rate = PRIMARY.rate(results.costs("rows", 100), consumers, HANDLER_MS / 1000)
    return f"{consumers} consumers, {_round(rate)} jobs/s"


def _round(value: float) -> str:
    """With two digits that count: the model knows no more."""
    return f"{float(f'{value:.2g}'):,.0f}"


# --- tables and pictures -------------------------------------------------------------------------------------


def _sizes(servers: Sequence[Results]) -> str:
    return "\n\n".join(f"{results.title}:\n\n{markdown(_of_server(results))}" for results in servers)


def _of_server(results: Results) -> list[tuple[str, ...]]:
    return list(sizes.lines([size(results, claims, batch, PRIMARY) for claims in NAMES for batch in BATCHES]))


def _held(servers: Sequence[Results]) -> str:
    headings = [f"{results.title}, {which}" for results in servers for which in ("least", "median", "most")]
    rows = [[held.spread(runs) for _, runs in held.groups(results)] for results in servers]
    names = [name for name, _ in held.groups(servers[0])]
    lines = [(name, *(cell for of_server in rows for cell in of_server[at])) for at, name in enumerate(names)]
    return markdown([("error of the prediction", *headings), *lines])


def _latency(servers: Sequence[Results]) -> str:
    figures = {results.title: results.records[LATENCY].figures for results in servers if LATENCY in results.records}
    if not figures:
        return NOTHING
    delays = sorted({figure.at for some in figures.values() for figure in some})
    headings = [f"{title}, {delay:g} ms" for title in figures for delay in delays]
    names = list(dict.fromkeys(figure.contestant for some in figures.values() for figure in some))
    rows = [(name, *(_rate(some, name, at) for some in figures.values() for at in delays)) for name in names]
    return markdown([("jobs/s", *headings), *rows])


def _rate(figures: Sequence[Figure], name: str, at: float) -> str:
    found = [figure.value for figure in figures if (figure.contestant, figure.at) == (name, at)]
    return f"{found[0]:,.0f}" if found else "-"


def _growth(results: Results) -> Chart:
    title = f"{results.title}, 4 cores, {DRAWN_MS} ms a job"
    lines = [_line(results, claims, batch) for claims in NAMES for batch in BATCHES]
    return Chart(title, "consumers", "jobs/s", lines, logarithmic=True)


def _line(results: Results, claims: str, batch: int) -> Line:
    costs = results.costs(claims, batch)
    points = [(consumers, PRIMARY.rate(costs, consumers, DRAWN_MS / 1000)) for consumers in CONSUMERS]
    return Line(f"claims={claims}, batches of {batch:,}", points)


def _drains(results: Results) -> Chart:
    return Chart(f"Drain: {results.title}", "consumers", "jobs/s", list(_beside(list(held.drains(results)))))


def _beside(runs: Sequence[held.Held]) -> Iterator[Line]:
    for claims in NAMES:
        of_these = [run for run in runs if run.claims == claims]
        yield Line(f"claims={claims}, measured", [(run.consumers, run.measured) for run in of_these])
        yield Line(f"claims={claims}, predicted", [(run.consumers, run.predicted) for run in of_these])


def main() -> None:
    """Write the page and the pictures."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for name, text in pictures().items():
        (IMAGES / name).write_text(text, encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")


if __name__ == "__main__":
    main()
