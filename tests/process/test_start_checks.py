"""At its start a run warns of what `claimjobs explain` would warn of, once for each finding."""

from __future__ import annotations

from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs


def test_a_run_without_an_index_warns_once_with_the_statement_that_helps(database: Backend) -> None:
    database.queue().enqueue(jobs(3))
    database.run("DROP INDEX jobs_claim" + ("" if database.family == "postgres" else " ON jobs"))
    words = ("start-processing", "--generators", "0", "--drain", "--consumers", "2", "--url", database.url)
    ended = claimjobs(*words)
    assert ended.code == 0, ended.said
    [warning] = [line for line in ended.err.splitlines() if "claims have no index" in line]
    assert "add one: CREATE INDEX jobs_claim ON jobs" in warning
    database.run(warning[warning.index("CREATE INDEX") :].rstrip(";"))
    assert "index" not in claimjobs(*words).err
