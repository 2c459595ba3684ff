"""What `explain` finds: each finding is provoked on each database on which it exists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, make, side_car_tables
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.dialects.inspection import Finding
from claimjobs.explain.explainer import Explanation
from claimjobs.explain.plans import SMALL_TABLE_ROWS
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs
from tests.conformance.test_partitioned import DAYS, divided


def of(explained: Explanation, check: str) -> Finding:
    """The finding of a check."""
    [found] = [finding for finding in explained.findings if finding.check == check]
    return found


def filled(backend: Backend, rows: int = SMALL_TABLE_ROWS + 1, **options: Any) -> Queue:
    """A queue with so many waiting jobs, of which the planner knows."""
    queue = backend.queue(**options)
    queue.enqueue(jobs(rows))
    backend.analyze()
    return queue


def test_the_table_that_claimjobs_makes_is_read_through_its_index(backend: Backend) -> None:
    explained = filled(backend).explain()
    assert explained.verdict in ("ok", "not known"), explained.findings
    assert of(explained, "index").verdict == "ok"
    planned = [finding for finding in explained.findings if finding.check.startswith("plan of")]
    plans = [finding.says for finding in planned if finding.verdict == "ok"]  # without an owner no mark is planned
    assert any("jobs_claim" in says for says in plans)
    assert not any("sorts" in finding.says for finding in planned)


def test_the_plan_of_the_mark_is_known_while_an_owner_lives(backend: Backend) -> None:
    """Without one a planner may find out that the statement reaches no row, and plans none."""
    queue = filled(backend, rows=3)
    assert queue.owner_id
    assert all(finding.verdict == "ok" for finding in queue.explain().findings if finding.check.startswith("plan of"))


def test_without_its_index_a_claim_is_a_warning_with_the_statement_that_helps(backend: Backend) -> None:
    queue = filled(backend)
    backend.run("DROP INDEX jobs_claim" + ("" if backend.family == "postgres" else " ON jobs"))
    explained = queue.explain()
    assert explained.verdict == "warning"
    first = next(finding for finding in explained.findings if finding.check.startswith("plan of"))
    assert first.verdict == "warning"
    assert "sorts rows" in first.says or "reads all of jobs" in first.says
    [statement] = of(explained, "index").fix
    backend.run(statement.rstrip(";"))
    backend.analyze()
    assert queue.explain().verdict in ("ok", "not known")


def test_an_order_without_an_index_is_a_warning(backend: Backend) -> None:
    explained = filled(backend, order_by="-e").explain()
    assert of(explained, "index").verdict == "warning"
    [statement] = of(explained, "index").fix
    assert "e DESC" in statement
    assert "DROP" not in statement  # the other index is that of another queue on this table


def test_each_order_gets_an_index_of_its_own(backend: Backend) -> None:
    """Two of them begin with one column."""
    backend.queue()
    for order in ("d", ["d", "e"], ["d", "owner_date"]):
        [statement] = of(backend.bare_queue(order_by=order).explain(), "index").fix
        assert "DROP" not in statement
        backend.run(statement)


def test_an_index_in_another_order_or_without_all_rows_is_not_the_one_that_claims_read(backend: Backend) -> None:
    queue = backend.queue(order_by="-e")
    others = ["(status, e, id, run_at, suspect)"]
    if backend.family == "postgres":
        columns = "(status, e DESC, id, run_at, suspect)"
        others += [f"{columns} WHERE e = '5'", columns.replace("DESC", "DESC NULLS LAST")]
    for number, other in enumerate(others):
        backend.run(f"CREATE INDEX other{number} ON jobs {other}")
        [statement] = of(queue.explain(), "index").fix
    backend.run(statement)
    assert of(queue.explain(), "index").fix == ()


def test_an_index_is_read_from_its_other_end(backend: Backend) -> None:
    queue = backend.queue(order_by="-e")
    backend.run("CREATE INDEX turned ON jobs (status, e, id DESC, run_at, suspect)")
    assert of(queue.explain(), "index").fix == ()


def test_an_order_by_an_expression_needs_an_index_of_its_own(backend: Backend) -> None:
    explained = filled(backend, order_by="length(d)").explain()
    assert of(explained, "index") == Finding("index", "warning", of(explained, "index").says)
    assert "can name no index" in of(explained, "index").says


def test_the_plan_of_a_partitioned_table_lists_its_reads_and_the_empty_partitions_are_no_warning(
    backend: Backend,
) -> None:
    queue = divided(backend)
    queue.enqueue(jobs(SMALL_TABLE_ROWS + 1))
    backend.analyze()
    assert queue.owner_id
    explained = queue.explain()
    planned = [finding for finding in explained.findings if finding.check.startswith("plan of")]
    assert [finding for finding in (*planned, of(explained, "index")) if finding.verdict != "ok"] == []
    names = [f"jobs_{day}" for day in DAYS] if backend.family == "postgres" else ["jobs"]
    assert all(f"{name} through " in planned[0].says or f"{name} without" in planned[0].says for name in names)
    backend.run("DROP INDEX jobs_claim" + ("" if backend.family == "postgres" else " ON jobs"))
    assert "warning" in {finding.verdict for finding in queue.explain().findings if finding.check.startswith("plan of")}


def test_the_plan_of_a_small_table_is_no_warning_but_a_missing_index_is(backend: Backend) -> None:
    queue = filled(backend, rows=3)
    assert queue.explain().verdict in ("ok", "not known")
    backend.run("DROP INDEX jobs_claim" + ("" if backend.family == "postgres" else " ON jobs"))
    explained = queue.explain()
    assert of(explained, "index").verdict == "warning"


def test_a_table_without_rows_is_explained(backend: Backend) -> None:
    assert backend.queue().explain().verdict in ("ok", "not known")


WAYS: dict[str, dict[str, Any]] = {
    "lease": {},
    "transaction": {"hold": "transaction"},
    "advisory": {"hold": "transaction", "locking": AdvisoryLocks()},
    "kept": {"on_done": "keep"},
}

READS = ("EXPLAIN", "SET", "SELECT", "DESCRIBE", "SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT")


@pytest.mark.parametrize("way", WAYS)
def test_what_is_explained_is_what_is_sent(backend: Backend, way: str) -> None:
    """Each statement of `explain` is one that a claim or a settle of this queue sends, and none is sent by it."""
    queue = filled(backend, rows=3, **WAYS[way])
    with counted(backend.engine) as asked:
        explained = queue.explain()
    assert all(statement.startswith(READS) for statement in _statements(asked))
    with counted(backend.engine) as sent, queue.claim(3) as batch:
        batch.done()
    for phase in explained.phases:
        assert phase.sql in sent, phase.name
    assert {phase.name for phase in explained.phases} >= {"settle"}


def _statements(sent: Iterable[str]) -> list[str]:
    return [statement for statement in sent if statement not in ("COMMIT", "ROLLBACK") and "SHOW" not in statement]


def test_a_side_car_is_explained_as_it_claims(backend: Backend) -> None:
    backend.run("CREATE TABLE mails (id INT PRIMARY KEY, subject VARCHAR(40))")
    backend.insert("mails", [{"id": number, "subject": "s"} for number in range(3)])
    make(backend.engine, side_car_tables(backend.engine, "mails"))
    explained = backend.bare_queue("mails", side_car=True).explain()
    assert explained.verdict in ("ok", "not known")
    assert {phase.name for phase in explained.phases} >= {"check again", "record"}


def test_a_missing_table_and_a_wrong_predicate_will_not_work(backend: Backend) -> None:
    explained = backend.bare_queue("nowhere").explain()
    assert [(finding.check, finding.verdict) for finding in explained.findings] == [("table", "will not work")]
    explained = backend.queue(where=sa.text("nothing = 1")).explain()
    assert [(finding.check, finding.verdict) for finding in explained.findings] == [("predicate", "will not work")]
