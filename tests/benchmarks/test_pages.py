"""The page of benchmarks and the README show what the files of results say."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks import chart, scenario
from benchmarks.chart import Chart, Line
from benchmarks.goals import Goal
from benchmarks.report import Sample
from benchmarks.scenario import Record
from docs import make_benchmarks

SVG = "{http://www.w3.org/2000/svg}"

FACTS = {
    "machine": "2 cores",
    "versions": {"python": "3"},
    "durability": {"fsync": "on"},
    "sizes": {"jobs": 3},
    "remarks": ["quiet"],
    "seconds": 60,
}


@pytest.mark.parametrize(("page", "images"), [("PAGE", "images"), ("README", "docs/images")])
def test_a_page_shows_the_results_that_are_there(page: str, images: str) -> None:
    text = getattr(make_benchmarks, page).read_text(encoding="utf-8")
    again = make_benchmarks.filled(text, make_benchmarks.records(), images)
    assert text == again, "run `python -m docs.make_benchmarks`"


def test_the_pictures_are_those_of_the_results() -> None:
    drawn = make_benchmarks.pictures(make_benchmarks.records())
    there = {path.name: path.read_text(encoding="utf-8") for path in make_benchmarks.IMAGES.glob("bench-*.svg")}
    assert there == drawn, "run `python -m docs.make_benchmarks`"


def test_every_scenario_has_a_place_on_the_page() -> None:
    text = make_benchmarks.PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- bench: {name} -->" in text for name in (*scenario.NAMES, "machine", "goals"))


def test_a_page_is_filled_between_its_marks() -> None:
    page = "a\n\n<!-- bench: drain -->\n\nold\n\n<!-- bench: end -->\n\nb\n"
    found = {name: [_record("postgres"), _record("mysql")] if name == "drain" else [] for name in scenario.NAMES}
    text = make_benchmarks.filled(page, found, "images")
    assert text.startswith("a\n\n<!-- bench: drain -->\n\n![Drain, by consumers](images/bench-drain.svg)\n\n")
    assert "old" not in text
    assert "| 4 | claimjobs | 100 | 100 - 100 |" in text
    assert text.endswith("<!-- bench: end -->\n\nb\n")
    assert make_benchmarks.filled(text, found, "images") == text
    nobodys = page.replace("drain", "somebody_elses")
    assert make_benchmarks.filled(nobodys, found, "images") == nobodys


def test_goals_are_marked_reached_or_not() -> None:
    page = "<!-- bench: goals -->\n<!-- bench: end -->\n"
    found: make_benchmarks.Records = {name: [] for name in scenario.NAMES}
    samples = [Sample("claimjobs", 0, 100), Sample("claimjobs", 1, 75)]
    found["held_snapshot"] = [Record("held_snapshot", "mysql", "a server", "a command", FACTS, samples)]
    text = make_benchmarks.filled(page, found, "images")
    assert "| 3 | mysql | rate in the end, of the run without the snapshot | at least 0.7 | 0.75 | reached |" in text


def test_a_run_that_left_something_out_has_no_goals() -> None:
    assert _record("postgres").goals == []


@pytest.mark.parametrize(
    ("goal", "reached"),
    [
        (Goal(1, "a", 0.9, 0.9), True),
        (Goal(1, "a", 0.89, 0.9), False),
        (Goal(8, "a", 1.3, 1.3, at_least=False), True),
        (Goal(8, "a", 1.31, 1.3, at_least=False), False),
    ],
)
def test_a_goal_is_reached_at_its_bound(goal: Goal, reached: bool) -> None:
    assert goal.reached is reached


def _record(backend: str) -> Record:
    samples = [Sample("raw loop", 1, 50), Sample("claimjobs", 4, 100)]
    return Record("drain", backend, f"{backend} 9 (somewhere)", "a command", FACTS, samples)


# --- pictures ------------------------------------------------------------------------------------------------


def test_a_picture_is_xml_with_a_line_for_each_name_in_each_panel() -> None:
    lines = [Line("a & b", [(1, 10), (10, 40)]), Line("c", [(1, 5), (10, 0)])]
    panels = [Chart(title, "consumers", "jobs/s", lines, logarithmic=True) for title in ("one", "two")]
    root = ET.fromstring(chart.svg(panels))
    drawn = root.findall(f".//{SVG}polyline")
    assert len(drawn) == 4
    assert len({line.get("stroke") for line in drawn}) == 2
    places = [tuple(map(float, place.split(","))) for place in (drawn[0].get("points") or "").split()]
    assert places[0][0] < places[1][0]
    assert places[0][1] > places[1][1], "more is higher up"
    texts = [text.text for text in root.findall(f".//{SVG}text")]
    assert texts.count("a & b") == 1, "one legend for all"
    assert {"one", "two", "1", "10", "40"} <= set(texts)


def test_a_picture_of_a_scenario_has_a_panel_for_each_server() -> None:
    root = ET.fromstring(chart.svg([_record("postgres").chart(), _record("mysql").chart()]))
    texts = [text.text for text in root.findall(f".//{SVG}text")]
    assert {"Drain, by consumers: postgres 9", "Drain, by consumers: mysql 9"} <= set(texts)


@pytest.mark.parametrize(("value", "said"), [(0, "0"), (950, "950"), (1_500, "1.5k"), (80_000, "80k"), (1e6, "1M")])
def test_the_names_on_an_axis_are_short(value: float, said: str) -> None:
    assert chart.short(value) == said
