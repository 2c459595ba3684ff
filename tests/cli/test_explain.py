"""`claimjobs explain`: its lines, its JSON, its exit codes."""

from __future__ import annotations

import json
import re

from claimjobs.dialects.inspection import VERDICTS
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs


def test_each_line_is_a_finding_and_the_exit_code_is_the_worst_verdict(database: Backend) -> None:
    database.queue().enqueue(jobs(3))
    ended = claimjobs("--verbose", "explain", "--url", database.url)
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"^ok +index +the table has the index that claims read$", ended.out, re.M), ended.out
    database.run("DROP INDEX jobs_claim" + ("" if database.family == "postgres" else " ON jobs"))
    ended = claimjobs("explain", "--url", database.url)
    assert ended.code == 1
    first, second, *_ = ended.out.splitlines()
    assert re.fullmatch(r"warning +index +claims have no index: add one", first), ended.out
    assert second.startswith("    CREATE INDEX jobs_claim ON jobs")
    assert "\nok" not in ended.out
    counted = r"jobs: 1 warning, .*\d ok; `claimjobs --verbose explain.*` shows those that are ok"
    assert re.fullmatch(counted, ended.out.splitlines()[-1]), ended.out


def test_what_will_not_work_is_exit_code_2(database: Backend) -> None:
    ended = claimjobs("explain", "--url", database.url, "--table", "nowhere")
    assert ended.code == 2
    assert ended.out.startswith("will not work  table  table 'nowhere' is not in this database")


def test_the_keys_of_its_json_are_those_that_its_help_names(database: Backend) -> None:
    database.queue().enqueue(jobs(3))
    ended = claimjobs("explain", "--url", database.url, "--json", "--where", "d > ''", "--order-by", "d")
    found = json.loads(ended.out)
    assert set(found) == {"table", "verdict", "findings", "phases"}
    assert {*map(frozenset, found["findings"])} == {frozenset({"check", "verdict", "says", "fix"})}
    assert {*map(frozenset, found["phases"])} == {frozenset({"name", "sql", "plan"})}
    assert {finding["verdict"] for finding in found["findings"]} <= set(VERDICTS)
    assert found["verdict"] == "warning"  # nothing is sorted by d
