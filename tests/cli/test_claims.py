"""`--claims batches`: the commands of a queue whose claims are rows of `claimjobs_batches`."""

from __future__ import annotations

import json
from pathlib import Path

from claimjobs.cli import exits
from claimjobs.table.definitions import BATCHES_TABLE
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs
from tests.conformance.owners import end_session, still

PER_BATCH = ("--claims", "batches")


def test_claims_per_batch_from_setup_to_reclaim(database: Backend, tmp_path: Path) -> None:
    database.may_leave_owners = True
    at = ("--url", database.url)
    assert claimjobs("setup-tables", *PER_BATCH, *at).code == exits.OK
    queue = still(database.bare_queue(claims="batches"))
    queue.enqueue(jobs(5))
    assert len(queue.claim(2)) == 2
    counts = json.loads(claimjobs("status", "--json", *PER_BATCH, *at).out)
    assert (counts["unclaimed"], counts["claimed"], counts["owners"][0]["jobs"]) == (3, 2, 2)

    other_kind = claimjobs("reclaim", *at)
    assert (other_kind.code, other_kind.out) == (exits.TABLE, "")
    assert "table 'jobs' has 1 owner with claims='batches'" in other_kind.err
    assert "`claimjobs reclaim --claims batches`" in other_kind.err

    end_session(database, queue.owner_id)
    assert claimjobs("reclaim", *PER_BATCH, *at).out == "2\n"
    assert database.rows(BATCHES_TABLE) == []

    (tmp_path / "jobs.toml").write_text('table = "jobs"\nclaims = "batches"\n')
    run = ("start-processing", "tests.cli.map_work:do_nothing", "--consumers", "2", "--drain")
    ended = claimjobs(*run, "--map", tmp_path / "jobs.toml", *at)
    assert ended.code == exits.OK, ended.err
    assert database.rows() == database.rows(BATCHES_TABLE) == []
    queue.close()
