"""Exclusive assignment: a worker has one row at most, and a row one worker at most, whoever comes at once.

The tables are those of S2 (digoal, "high-concurrency task allocation"), as they stand there.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.contrib.assignments import Assignment, Assignments
from claimjobs.errors import BadPredicate, ColumnMissing, CrossedFork, KeyUnfit, UnfitTable
from tests.backends import Backend
from tests.conformance.jobs import counted

pytestmark = pytest.mark.one_server("contrib: the rest of the suites runs it on every database")

JAVA_POOL = "create table java_pool (tid int primary key, taskid int unique)"
TASK_POOL = "create table task_pool (taskid int primary key, tid int unique)"
AT_ONCE = 32

Another = Callable[..., Assignments]
Pool = Callable[..., Assignments]


@pytest.fixture
def another(backend: Backend) -> Iterator[Another]:
    """The workers of a table that is there."""
    made: list[Assignments] = []

    def make(table: str = "task_pool", worker: str = "tid", bind: sa.Engine | None = None, **where: Any) -> Assignments:
        made.append(Assignments(bind or backend.new_engine(), table, worker=worker, **where))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def pool(backend: Backend, another: Another) -> Pool:
    """S2's second example: so many tasks, for workers to take one each."""

    def make(tasks: int, **where: Any) -> Assignments:
        backend.run(TASK_POOL)
        fill(backend, "task_pool", "taskid", tasks)
        return another(**where)

    return make


def fill(backend: Backend, table: str, column: str, count: int) -> None:
    rows = [{"n": number} for number in range(1, count + 1)]
    with backend.engine.begin() as connection:
        if rows:
            connection.execute(sa.text(f"insert into {table} ({column}) values (:n)"), rows)


def assigned(backend: Backend, table: str = "task_pool") -> dict[int, int]:
    """Who has what: the values of the first column by those of the second."""
    rows: Any = [row.values() for row in backend.rows(table)]
    return {second: first for first, second in rows if second is not None}


def told(assignment: Assignment, column: str = "taskid") -> tuple[str, int | None]:
    return assignment.outcome, None if assignment.row is None else assignment.row[column]


@contextmanager
def stranger(backend: Backend, statement: str) -> Iterator[sa.Connection]:
    """Another program that has written, or locked, and not committed."""
    with backend.engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        connection.execute(sa.text(statement))
        yield connection
        connection.rollback()


# --- the outcomes ------------------------------------------------------------------------------------------


def test_a_worker_gets_one_row_and_keeps_it(backend: Backend, pool: Pool, another: Another) -> None:
    tasks = pool(2)
    outcome, mine = told(tasks.assign(7))
    assert outcome == "assigned"
    assert told(tasks.assign(7)) == ("already assigned", mine)
    assert told(another().assign(7)) == ("already assigned", mine)
    assert assigned(backend) == {7: mine}
    assert told(tasks.assign(8)) == ("assigned", 3 - (mine or 0))
    assert told(tasks.assign(9)) == ("nothing free", None)


def test_the_row_comes_along_as_it_is_now(pool: Pool) -> None:
    tasks = pool(1)
    for _ in range(2):
        assert tasks.assign(7).row == {"taskid": 1, "tid": 7}


def test_what_is_unassigned_is_free_again(pool: Pool) -> None:
    tasks = pool(1)
    assert not tasks.unassign(7)
    tasks.assign(7)
    assert tasks.unassign(7)
    assert told(tasks.assign(8)) == ("assigned", 1)
    assert not tasks.unassign(7)


def test_both_directions_are_the_same_call_on_the_other_table(backend: Backend, another: Another) -> None:
    """S2's first example: a task is given one of the free workers."""
    backend.run(JAVA_POOL)
    fill(backend, "java_pool", "tid", 1)
    tasks = another("java_pool", "taskid")
    assert told(tasks.assign(70), "tid") == ("assigned", 1)
    assert told(tasks.assign(71), "tid") == ("nothing free", None)
    assert tasks.unassign(70)
    assert told(tasks.assign(71), "tid") == ("assigned", 1)


def test_a_predicate_says_which_rows_may_be_had(pool: Pool, another: Another) -> None:
    task = sa.column("taskid", sa.Integer)
    tasks = pool(9, where=sa.text("taskid = 4"))
    assert told(tasks.assign(1)) == ("assigned", 4)
    assert told(tasks.assign(2)) == ("nothing free", None)
    assert told(another(where=task == 9).assign(1)) == ("already assigned", 4)


def test_a_predicate_does_not_change_the_conditions_beside_it(pool: Pool, another: Another) -> None:
    tasks = pool(2, where=sa.text("taskid = 4 or taskid = 2"))
    assert told(tasks.assign(1)) == ("assigned", 2)
    assert told(tasks.assign(2)) == ("nothing free", None)
    with pytest.raises(BadPredicate):
        another(where=sa.text("1=1) or (1=1"))


def test_rows_that_somebody_has_locked_are_passed_over(backend: Backend, pool: Pool) -> None:
    tasks = pool(2)
    with stranger(backend, "select * from task_pool where taskid = 1 for update"):
        assert told(tasks.assign(7)) == ("assigned", 2)


def test_it_is_busy_when_all_that_is_free_is_locked(backend: Backend, pool: Pool) -> None:
    tasks = pool(2)
    with stranger(backend, "select * from task_pool for update"):
        assert told(tasks.assign(7)) == ("busy", None)
    assert tasks.assign(7).outcome == "assigned"


def test_it_is_busy_when_somebody_writes_the_same_value_and_does_not_commit(backend: Backend, pool: Pool) -> None:
    tasks = pool(3)
    with stranger(backend, "update task_pool set tid = 7 where taskid = 3"):
        assert told(tasks.assign(7)) == ("busy", None)
    assert assigned(backend) == {}
    assert tasks.assign(7).outcome == "assigned"


@pytest.mark.parametrize("commits", [True, False])
def test_a_short_transaction_on_the_same_value_is_waited_for(backend: Backend, pool: Pool, commits: bool) -> None:
    tasks = pool(3)
    found: list[Assignment] = []
    with stranger(backend, "update task_pool set tid = 7 where taskid = 3") as other:
        waiting = threading.Thread(target=lambda: found.append(tasks.assign(7)))
        waiting.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the assignment waits")
        if commits:
            other.commit()
    waiting.join(120)
    assert [one.outcome for one in found] == ["already assigned" if commits else "assigned"]
    assert len(assigned(backend)) == 1


# --- a new pair --------------------------------------------------------------------------------------------


def test_a_pair_is_new_or_what_there_is_comes_along(backend: Backend, pool: Pool) -> None:
    """S2's third example: neither side is known beforehand."""
    tasks = pool(0)
    assert told(tasks.pair({"tid": 1, "taskid": 2})) == ("assigned", 2)
    assert told(tasks.pair({"tid": 1, "taskid": 3})) == ("already assigned", 2)
    taken = tasks.pair({"tid": 4, "taskid": 2})
    assert (taken.outcome, taken.row) == ("already assigned", {"tid": 1, "taskid": 2})
    assert told(tasks.pair({"tid": 4, "taskid": 3})) == ("assigned", 3)
    assert assigned(backend) == {1: 2, 4: 3}


def test_a_pair_is_busy_while_somebody_writes_either_of_it(backend: Backend, pool: Pool) -> None:
    tasks = pool(0)
    with stranger(backend, "insert into task_pool (taskid, tid) values (2, 1)"):
        assert tasks.pair({"tid": 1, "taskid": 3}).outcome == "busy"
        assert tasks.pair({"tid": 4, "taskid": 2}).outcome == "busy"
        assert tasks.pair({"tid": 4, "taskid": 3}).outcome == "assigned"
    assert tasks.pair({"tid": 1, "taskid": 2}).outcome == "assigned"


def test_a_pair_has_columns_of_the_table(pool: Pool) -> None:
    tasks = pool(0)
    with pytest.raises(sa.exc.CompileError, match="colour"):
        tasks.pair({"tid": 1, "taskid": 2, "colour": 3})
    with pytest.raises(ValueError, match="tid"):
        tasks.pair({"taskid": 2})


# --- many at once ------------------------------------------------------------------------------------------


def at_once(backend: Backend, another: Another, work: Callable[[Assignments, int], None]) -> None:
    """So many threads, each with Assignments of its own. Raises what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(AT_ONCE, timeout=120)

    def run(number: int, tasks: Assignments) -> None:
        try:
            start.wait()
            work(tasks, number)
        except BaseException as error:
            errors.append(error)

    all_tasks = [another(bind=backend.engine) for _ in range(AT_ONCE)]
    threads = [threading.Thread(target=run, args=given, daemon=True) for given in enumerate(all_tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors, errors[0]
    assert not any(thread.is_alive() for thread in threads)


def until_told(ask: Callable[[], Assignment]) -> Assignment:
    while (found := ask()).outcome == "busy":
        pass
    return found


def test_every_worker_gets_a_task_of_its_own(backend: Backend, pool: Pool, another: Another) -> None:
    pool(AT_ONCE * 5)
    got: dict[int, int] = {}

    def take_five(tasks: Assignments, number: int) -> None:
        for n in range(5):
            worker = number * 10 + n
            found = until_told(lambda worker=worker: tasks.assign(worker))  # type: ignore[misc]
            assert found.outcome == "assigned"
            assert found.row is not None
            got[worker] = found.row["taskid"]

    at_once(backend, another, take_five)
    assert len(got) == len(set(got.values())) == AT_ONCE * 5
    assert assigned(backend) == got


def test_the_same_worker_that_comes_at_once_gets_one_task(backend: Backend, pool: Pool, another: Another) -> None:
    pool(100)
    outcomes: list[tuple[str, int, int]] = []

    def take(tasks: Assignments, number: int) -> None:
        workers = list(range(6))
        random.Random(number).shuffle(workers)
        for worker in workers:
            found = until_told(lambda worker=worker: tasks.assign(worker))  # type: ignore[misc]
            assert found.row is not None
            outcomes.append((found.outcome, worker, found.row["taskid"]))

    at_once(backend, another, take)
    assert Counter(outcome for outcome, _, _ in outcomes) == {"assigned": 6, "already assigned": AT_ONCE * 6 - 6}
    assert {(worker, task) for _, worker, task in outcomes} == set(assigned(backend).items())


def test_what_comes_and_goes_is_never_had_twice(backend: Backend, pool: Pool, another: Another) -> None:
    pool(10)
    having: dict[int, int] = {}
    twice: list[int] = []

    def come_and_go(tasks: Assignments, number: int) -> None:
        for _ in range(10):
            found = tasks.assign(number)
            if found.row is not None:
                if having.setdefault(found.row["taskid"], number) != number:
                    twice.append(found.row["taskid"])
                del having[found.row["taskid"]]
                assert tasks.unassign(number)

    at_once(backend, another, come_and_go)
    assert twice == []
    assert assigned(backend) == {}


def test_pairs_of_the_same_values_at_once(backend: Backend, pool: Pool, another: Another) -> None:
    pool(0)
    outcomes: list[str] = []

    def insert(tasks: Assignments, number: int) -> None:
        dice = random.Random(number)
        for _ in range(8):
            values = {"tid": dice.randrange(12), "taskid": dice.randrange(12)}
            outcomes.append(until_told(lambda values=values: tasks.pair(values)).outcome)  # type: ignore[misc]

    at_once(backend, another, insert)
    assert set(outcomes) == {"assigned", "already assigned"}
    assert outcomes.count("assigned") == len(backend.rows("task_pool"))


# --- what it costs, and what it takes ------------------------------------------------------------------------


def test_as_few_statements_as_the_database_allows(backend: Backend, pool: Pool) -> None:
    tasks = pool(9)
    tasks.assign(0)
    in_one = backend.dialect.claims_in_one_statement
    assert count(tasks, lambda: tasks.assign(1)) == (1 if in_one else 2)
    assert count(tasks, lambda: tasks.assign(1)) == 2
    assert count(tasks, lambda: tasks.unassign(1)) == 1
    tasks.pair({"tid": 70, "taskid": 70})
    assert count(tasks, lambda: tasks.pair({"tid": 71, "taskid": 71})) == 1


def count(tasks: Assignments, ask: Callable[[], object]) -> int:
    with counted(tasks.engine) as sent:
        ask()
    return len([word for word in sent if word not in ("COMMIT", "ROLLBACK")])


def test_a_free_row_is_found_through_the_unique_index_without_a_sort(backend: Backend, pool: Pool) -> None:
    tasks = pool(5_000)
    backend.run("update task_pool set tid = taskid where taskid < 4000")
    backend.analyze("task_pool")
    [index] = sa.inspect(backend.engine).get_indexes("task_pool")
    with backend.engine.connect() as connection:
        plan = backend.plan(connection, tasks._lock, {"claimjobs_worker": 7})
    assert set(plan.indexes) == {index["name"]}, plan.text
    assert not plan.sorts, plan.text


def test_neither_owners_nor_a_state_are_needed(backend: Backend, pool: Pool) -> None:
    tasks = pool(1)
    tasks.assign(7)
    assert sa.inspect(backend.engine).get_table_names() == ["task_pool"]


def test_a_table_can_be_claimed_from_and_be_assigned(backend: Backend, another: Another) -> None:
    backend.make()
    backend.run("ALTER TABLE jobs ADD COLUMN worker INTEGER UNIQUE")
    tasks, queue = another("jobs", "worker", where=sa.text("status = 'unclaimed'")), backend.bare_queue()
    queue.enqueue([{"d": "a", "e": ""}, {"d": "b", "e": ""}])
    with queue.claim(1) as batch:
        found = tasks.assign(7)
        assert found.row is not None
        assert found.row["d"] == "b"
        batch.done()
    assert [row["worker"] for row in backend.rows()] == [7]
    assert queue.reclaim() == 0


def test_it_can_be_used_again_after_close(pool: Pool) -> None:
    tasks = pool(1)
    with tasks:
        tasks.assign(7)
    assert tasks.unassign(7)


def test_a_forked_process_needs_one_of_its_own(pool: Pool) -> None:
    tasks = pool(1)
    tasks.assign(7)
    tasks._process += 1  # as it is in a child
    with pytest.raises(CrossedFork):
        tasks.assign(8)
    tasks._process -= 1


def test_without_a_unique_index_nothing_is_assigned(backend: Backend, another: Another) -> None:
    backend.run("create table task_pool (taskid int primary key, tid int)")
    fill(backend, "task_pool", "taskid", 1)
    with pytest.raises(UnfitTable, match="tid") as raised:
        another()
    backend.run(str(raised.value).partition(": ")[2])
    assert told(another().assign(7)) == ("assigned", 1)


def test_a_table_without_a_primary_key_or_the_column_is_refused(backend: Backend, another: Another) -> None:
    backend.run("create table task_pool (taskid int, tid int unique)")
    with pytest.raises(KeyUnfit, match="no primary key"):
        another()
    with pytest.raises(ColumnMissing, match="ALTER TABLE task_pool ADD COLUMN worker"):
        another(worker="worker")


def test_nobody_is_no_worker(pool: Pool) -> None:
    tasks = pool(1)
    with pytest.raises(ValueError, match="tid"):
        tasks.assign(None)
    with pytest.raises(ValueError, match="tid"):
        tasks.unassign(None)


# --- other unique indexes --------------------------------------------------------------------------------------------


def test_another_unique_index_that_refuses_a_pair_is_named(backend: Backend, another: Another) -> None:
    """Nobody is at work on that value: tried again for ever, it would be busy for ever."""
    backend.run("create table seats (tid int primary key, taskid int unique, room int, seat int)")
    backend.run("create unique index one_to_a_seat on seats (room, seat)")
    tasks = another("seats", "taskid")
    first = {"tid": 1, "taskid": 1, "room": 3, "seat": 4}
    assert tasks.pair(first).outcome == "assigned"
    with pytest.raises(sa.exc.IntegrityError, match="one_to_a_seat"):
        tasks.pair({**first, "tid": 2, "taskid": 2})
    assert tasks.pair(first).outcome == "already assigned"
    assert tasks.pair({**first, "tid": 2}).outcome == "already assigned"
    assert tasks.pair({"tid": 2, "taskid": 2, "room": 3, "seat": 5}).outcome == "assigned"


def test_another_unique_index_that_refuses_a_worker_is_named(backend: Backend, another: Another) -> None:
    """One worker a shift: the row that is free has a shift that the worker has elsewhere."""
    backend.run("create table shifts (nr int primary key, worker varchar(9) unique, half varchar(9))")
    backend.run("alter table shifts add column team char(1) generated always as (left(worker, 1)) stored")
    backend.run("create unique index one_of_a_team on shifts (half, team)")
    backend.run("insert into shifts (nr, worker, half) values (1, null, 'am'), (2, null, 'am')")
    tasks = another("shifts", "worker")
    assert tasks.assign("ada").outcome == "assigned"
    with pytest.raises(sa.exc.IntegrityError, match="one_of_a_team"):
        tasks.assign("abe")
    assert tasks.assign("bob").outcome == "assigned"
