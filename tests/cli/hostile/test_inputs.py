"""Every input of the tables, in this process: what comes of it, and that nothing is lost by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from claimjobs.cli import exits
from tests.backends import Backend, Servers
from tests.cli.command import Ended, claimjobs, mapped
from tests.cli.hostile import inputs
from tests.cli.hostile.inputs import SECRET, Case
from tests.conformance.jobs import jobs
from tests.flavours import FAMILIES

STATES = Counter({"unclaimed": 3, "claimed": 3, "done": 3, "dead": 3})
COUNTED = sa.text("SELECT status, count(*) FROM jobs GROUP BY status")
EVERYWHERE = [*inputs.PREDICATES, *inputs.OPTIONS, *inputs.ROWS, *inputs.LONG_NAMES]
ANYWHERE = [*inputs.NUMBERS, *inputs.URLS, *inputs.NOT_UTF8]


@pytest.fixture(scope="module", params=FAMILIES)
def filled(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    """A database with jobs in every state, for all cases: none may change it."""
    lent = servers.lend(request.param)
    lent.make()
    rows = zip(jobs(STATES.total()), sorted(STATES.elements()), strict=True)
    lent.insert(
        "jobs", [{**row, "status": state, "owner_id": 7 if state == "claimed" else None} for row, state in rows]
    )
    lent.run("UPDATE jobs SET owner_date = '2020-01-01 00:00:00' WHERE status IN ('done', 'dead')")
    yield lent
    lent.close()


@pytest.mark.parametrize("case", EVERYWHERE, ids=str)
@pytest.mark.each_value("case", "each input is a case of its own", step=4)
def test_an_input_that_a_database_has_to_do_with(filled: Backend, tmp_path: Path, case: Case) -> None:
    more = mapped(tmp_path, case.map) if case.map else ()
    ended = claimjobs(*case.words, *more, stdin=case.stdin, env={"CLAIMJOBS_URL": filled.url})
    check(case, ended)
    assert states(filled) == STATES


@pytest.mark.parametrize("case", ANYWHERE, ids=str)
@pytest.mark.each_value("case", "each input is a case of its own", step=4)
def test_an_input_that_none_has_to_do_with(case: Case) -> None:
    check(case, claimjobs(*case.words, stdin=case.stdin, env={"CLAIMJOBS_URL": f"mysql://a:{SECRET}@127.0.0.1:1/b"}))


def states(backend: Backend) -> Counter[str]:
    """How many jobs there are in each state. Asked after every case, so the table is not reflected for it."""
    with backend.engine.connect() as connection:
        return Counter({row[0]: row[1] for row in connection.execute(COUNTED)})


def check(case: Case, ended: Ended) -> None:
    """The exit code, one line that says what and the next step, no traceback unless asked for, no secret."""
    assert ended.code in case.codes, ended.err
    assert case.said in ended.said
    assert SECRET not in ended.said
    told = [line for line in ended.err.splitlines() if line.startswith(("claimjobs: ", "Error: "))]
    assert ended.code == exits.OK or told, ended.err
    if "-v" not in case.words:
        assert "Traceback" not in ended.err
        assert "shows where" not in ended.err, "an error that nobody foresaw"
        assert len(told) <= 2
