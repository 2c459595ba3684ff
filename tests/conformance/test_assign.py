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

from claimjobs import Assignment, Columns, Queue
from claimjobs.errors import ColumnMissing, NoAssignee, NotExclusive, OtherIndex
from claimjobs.liveness import Liveness
from claimjobs.roles import roles_of
from claimjobs.statements import assign as statements
from claimjobs.statements.find import Selection
from tests.backends import Backend
from tests.conformance.jobs import counted

JAVA_POOL = "create table java_pool (tid int primary key, taskid int unique)"
TASK_POOL = "create table task_pool (taskid int primary key, tid int unique)"
TO_WORKER = Columns(key="taskid", assignee="tid")
TO_TASK = Columns(key="tid", assignee="taskid")
AT_ONCE = 32


def pool(backend: Backend, tasks: int, **options: Any) -> Queue:
    """S2's second example: tasks, for workers to take one each."""
    backend.run(TASK_POOL)
    fill(backend, "task_pool", "taskid", tasks)
    return another(backend, **options)


def another(backend: Backend, table: str = "task_pool", columns: Columns = TO_WORKER, **options: Any) -> Queue:
    return backend.bare_queue(table, **{"columns": columns, "bind": backend.new_engine(), **options})


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
    return assignment.outcome, None if assignment.job is None else assignment.job[column]


@contextmanager
def stranger(backend: Backend, statement: str) -> Iterator[sa.Connection]:
    """Another program that has written, or locked, and not committed."""
    with backend.engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        connection.execute(sa.text(statement))
        yield connection
        connection.rollback()


# --- the outcomes ------------------------------------------------------------------------------------------


def test_a_worker_gets_one_row_and_keeps_it(backend: Backend) -> None:
    queue = pool(backend, 2)
    outcome, mine = told(queue.assign(7))
    assert outcome == "assigned"
    assert told(queue.assign(7)) == ("already assigned", mine)
    assert told(another(backend).assign(7)) == ("already assigned", mine)
    assert assigned(backend) == {7: mine}
    assert told(queue.assign(8)) == ("assigned", 3 - (mine or 0))
    assert told(queue.assign(9)) == ("nothing free", None)


def test_the_row_comes_along_as_it_is_now(backend: Backend) -> None:
    queue = pool(backend, 1)
    for _ in range(2):
        job = queue.assign(7).job
        assert job is not None
        assert (job.key, dict(job)) == (1, {"taskid": 1, "tid": 7})


def test_what_is_unassigned_is_free_again(backend: Backend) -> None:
    queue = pool(backend, 1)
    assert not queue.unassign(7)
    queue.assign(7)
    assert queue.unassign(7)
    assert told(queue.assign(8)) == ("assigned", 1)
    assert not queue.unassign(7)


def test_both_directions_are_the_same_call_on_the_other_table(backend: Backend) -> None:
    """S2's first example: a task is given one of the free workers."""
    backend.run(JAVA_POOL)
    fill(backend, "java_pool", "tid", 1)
    queue = another(backend, "java_pool", TO_TASK)
    assert told(queue.assign(70), "tid") == ("assigned", 1)
    assert told(queue.assign(71), "tid") == ("nothing free", None)
    assert queue.unassign(70)
    assert told(queue.assign(71), "tid") == ("assigned", 1)


def test_a_predicate_says_which_rows_may_be_had(backend: Backend) -> None:
    queue = pool(backend, 9, where=sa.text("taskid > 3"))
    assert told(queue.assign(1, where=sa.text("taskid < 5"))) == ("assigned", 4)
    assert told(queue.assign(2, where=sa.text("taskid < 5"))) == ("nothing free", None)
    assert told(queue.assign(1, where=sa.text("taskid = 9"))) == ("already assigned", 4)


def test_an_order_is_kept_and_what_is_locked_is_passed_over(backend: Backend) -> None:
    task = sa.column("taskid", sa.Integer)
    queue = pool(backend, 40, order_by=task.desc())
    assert told(queue.assign(1)) == ("assigned", 40)
    with stranger(backend, "select * from task_pool where taskid = 39 for update"):
        assert told(queue.assign(2)) == ("assigned", 38)
    assert told(queue.assign(3)) == ("assigned", 39)


def test_rows_that_somebody_has_locked_are_passed_over(backend: Backend) -> None:
    queue = pool(backend, 2)
    with stranger(backend, "select * from task_pool where taskid = 1 for update"):
        assert told(queue.assign(7)) == ("assigned", 2)


def test_it_is_busy_when_all_that_is_free_is_locked(backend: Backend) -> None:
    queue = pool(backend, 2)
    with stranger(backend, "select * from task_pool for update"):
        assert told(queue.assign(7)) == ("busy", None)
    assert queue.assign(7).outcome == "assigned"


def test_it_is_busy_when_somebody_writes_the_same_value_and_does_not_commit(backend: Backend) -> None:
    queue = pool(backend, 3, liveness=Liveness(lease=5))
    with stranger(backend, "update task_pool set tid = 7 where taskid = 3"):
        assert told(queue.assign(7)) == ("busy", None)
    assert assigned(backend) == {}
    assert queue.assign(7).outcome == "assigned"


@pytest.mark.parametrize("commits", [True, False])
def test_a_short_transaction_on_the_same_value_is_waited_for(backend: Backend, commits: bool) -> None:
    queue = pool(backend, 3)
    found: list[Assignment] = []
    with stranger(backend, "update task_pool set tid = 7 where taskid = 3") as other:
        waiting = threading.Thread(target=lambda: found.append(queue.assign(7)))
        waiting.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the assignment waits")
        if commits:
            other.commit()
    waiting.join(20)
    assert [one.outcome for one in found] == ["already assigned" if commits else "assigned"]
    assert len(assigned(backend)) == 1


# --- a new pair --------------------------------------------------------------------------------------------


def test_a_pair_is_new_or_what_there_is_comes_along(backend: Backend) -> None:
    """S2's third example: neither side is known beforehand."""
    queue = pool(backend, 0)
    assert told(queue.pair({"tid": 1, "taskid": 2})) == ("assigned", 2)
    assert told(queue.pair({"tid": 1, "taskid": 3})) == ("already assigned", 2)
    taken = queue.pair({"tid": 4, "taskid": 2})
    assert (taken.outcome, dict(taken.job or {})) == ("already assigned", {"tid": 1, "taskid": 2})
    assert told(queue.pair({"tid": 4, "taskid": 3})) == ("assigned", 3)
    assert assigned(backend) == {1: 2, 4: 3}


def test_a_pair_is_busy_while_somebody_writes_either_of_it(backend: Backend) -> None:
    queue = pool(backend, 0, liveness=Liveness(lease=5))
    with stranger(backend, "insert into task_pool (taskid, tid) values (2, 1)"):
        assert queue.pair({"tid": 1, "taskid": 3}).outcome == "busy"
        assert queue.pair({"tid": 4, "taskid": 2}).outcome == "busy"
        assert queue.pair({"tid": 4, "taskid": 3}).outcome == "assigned"
    assert queue.pair({"tid": 1, "taskid": 2}).outcome == "assigned"


def test_a_pair_has_columns_of_the_table(backend: Backend) -> None:
    queue = pool(backend, 0)
    with pytest.raises(ColumnMissing, match="colour"):
        queue.pair({"tid": 1, "taskid": 2, "colour": 3})
    with pytest.raises(ValueError, match="tid"):
        queue.pair({"taskid": 2})


# --- many at once ------------------------------------------------------------------------------------------


def at_once(backend: Backend, work: Callable[[Queue, int], None]) -> None:
    """So many threads, each with a Queue of its own. Raises what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(AT_ONCE, timeout=60)

    def run(number: int, queue: Queue) -> None:
        try:
            start.wait()
            work(queue, number)
        except BaseException as error:
            errors.append(error)

    queues = [another(backend, bind=backend.engine) for _ in range(AT_ONCE)]
    threads = [threading.Thread(target=run, args=given, daemon=True) for given in enumerate(queues)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors[0]
    assert not any(thread.is_alive() for thread in threads)


def until_told(ask: Callable[[], Assignment]) -> Assignment:
    while (found := ask()).outcome == "busy":
        pass
    return found


def test_every_worker_gets_a_task_of_its_own(backend: Backend) -> None:
    pool(backend, AT_ONCE * 5)
    got: dict[int, int] = {}

    def take_five(queue: Queue, number: int) -> None:
        for n in range(5):
            worker = number * 10 + n
            found = until_told(lambda worker=worker: queue.assign(worker))  # type: ignore[misc]
            assert found.outcome == "assigned"
            assert found.job is not None
            got[worker] = found.job.taskid

    at_once(backend, take_five)
    assert len(got) == len(set(got.values())) == AT_ONCE * 5
    assert assigned(backend) == got


def test_the_same_worker_that_comes_at_once_gets_one_task(backend: Backend) -> None:
    pool(backend, 100)
    outcomes: list[tuple[str, int, int]] = []

    def take(queue: Queue, number: int) -> None:
        workers = list(range(6))
        random.Random(number).shuffle(workers)
        for worker in workers:
            found = until_told(lambda worker=worker: queue.assign(worker))  # type: ignore[misc]
            assert found.job is not None
            outcomes.append((found.outcome, worker, found.job.taskid))

    at_once(backend, take)
    assert Counter(outcome for outcome, _, _ in outcomes) == {"assigned": 6, "already assigned": AT_ONCE * 6 - 6}
    assert {(worker, task) for _, worker, task in outcomes} == set(assigned(backend).items())


def test_what_comes_and_goes_is_never_had_twice(backend: Backend) -> None:
    pool(backend, 10)
    having: dict[int, int] = {}
    twice: list[int] = []

    def come_and_go(queue: Queue, number: int) -> None:
        for _ in range(10):
            found = queue.assign(number)
            if found.job is not None:
                if having.setdefault(found.job.taskid, number) != number:
                    twice.append(found.job.taskid)
                del having[found.job.taskid]
                assert queue.unassign(number)

    at_once(backend, come_and_go)
    assert twice == []
    assert assigned(backend) == {}


def test_pairs_of_the_same_values_at_once(backend: Backend) -> None:
    pool(backend, 0)
    outcomes: list[str] = []

    def insert(queue: Queue, number: int) -> None:
        dice = random.Random(number)
        for _ in range(8):
            values = {"tid": dice.randrange(12), "taskid": dice.randrange(12)}
            outcomes.append(until_told(lambda values=values: queue.pair(values)).outcome)  # type: ignore[misc]

    at_once(backend, insert)
    assert set(outcomes) == {"assigned", "already assigned"}
    assert outcomes.count("assigned") == len(backend.rows("task_pool"))


# --- what it costs, and what it takes ------------------------------------------------------------------------


def test_as_few_statements_as_the_database_allows(backend: Backend) -> None:
    queue = pool(backend, 9)
    queue.assign(0)
    in_one = backend.dialect.claims_in_one_statement
    assert count(queue, lambda: queue.assign(1)) == (1 if in_one else 2)
    assert count(queue, lambda: queue.assign(1)) == (1 if in_one else 3)
    assert count(queue, lambda: queue.unassign(1)) == 1
    queue.pair({"tid": 70, "taskid": 70})
    returns = queue.engine.dialect.insert_returning
    assert count(queue, lambda: queue.pair({"tid": 71, "taskid": 71})) == (1 if returns else 2)


def count(queue: Queue, ask: Callable[[], object]) -> int:
    with counted(queue.engine) as sent:
        ask()
    return len([word for word in sent if word not in ("COMMIT", "ROLLBACK")])


def test_a_free_row_is_found_through_the_unique_index_without_a_sort(backend: Backend) -> None:
    pool(backend, 5_000)
    backend.run("update task_pool set tid = taskid where taskid < 4000")
    backend.analyze("task_pool")
    table = sa.Table("task_pool", sa.MetaData(), autoload_with=backend.engine)
    [index] = sa.inspect(backend.engine).get_indexes("task_pool")
    statement = statements.lock_free(
        roles_of(table, TO_WORKER), backend.dialect, Selection(sa.true(), ()), index["name"]
    )
    with backend.engine.connect() as connection:
        plan = backend.plan(connection, statement, {})
    assert plan.indexes == (index["name"],), plan.text
    assert not plan.sorts, plan.text


def test_neither_owners_nor_a_state_are_needed(backend: Backend) -> None:
    queue = pool(backend, 1)
    queue.assign(7)
    queue.check()
    assert sa.inspect(backend.engine).get_table_names() == ["task_pool"]
    with pytest.raises(ColumnMissing, match="owner_id"):
        queue.claim()


def test_a_table_can_be_claimed_from_and_be_assigned(backend: Backend) -> None:
    backend.make()
    backend.run("ALTER TABLE jobs ADD COLUMN worker INTEGER UNIQUE")
    queue = another(backend, "jobs", Columns(assignee="worker"))
    queue.enqueue([{"d": "a", "e": ""}, {"d": "b", "e": ""}])
    with queue.claim(1) as batch:
        found = queue.assign(7)
        assert found.job is not None
        assert found.job.d == "b"
        batch.done()
    assert [row["worker"] for row in backend.rows()] == [7]
    assert queue.reclaim() == 0


def test_without_a_unique_index_nothing_is_assigned(backend: Backend) -> None:
    backend.run("create table task_pool (taskid int primary key, tid int)")
    fill(backend, "task_pool", "taskid", 1)
    queue = another(backend)
    with pytest.raises(NotExclusive, match="tid") as raised:
        queue.assign(7)
    backend.run(str(raised.value).partition(": ")[2])
    assert told(queue.assign(7)) == ("assigned", 1)


def test_a_key_that_is_not_unique_holds_no_pair(backend: Backend) -> None:
    backend.run("create table task_pool (taskid int, tid int unique)")
    backend.run("create index task on task_pool (taskid)")
    with pytest.raises(NotExclusive, match="taskid"):
        another(backend).pair({"tid": 1, "taskid": 2})


def test_a_map_must_name_the_column(backend: Backend) -> None:
    queue = backend.queue()
    with pytest.raises(NoAssignee, match="assignee"):
        queue.assign(7)


def test_nobody_is_no_worker(backend: Backend) -> None:
    queue = pool(backend, 1)
    with pytest.raises(ValueError, match="tid"):
        queue.assign(None)
    with pytest.raises(ValueError, match="tid"):
        queue.unassign(None)


# --- other unique indexes --------------------------------------------------------------------------------------------


def test_another_unique_index_that_refuses_a_pair_is_named(backend: Backend) -> None:
    """Nobody is at work on that value: tried again for ever, it would be busy for ever."""
    backend.run("create table seats (tid int primary key, taskid int unique, room int, seat int)")
    backend.run("create unique index one_to_a_seat on seats (room, seat)")
    queue = another(backend, "seats", TO_TASK)
    first = {"tid": 1, "taskid": 1, "room": 3, "seat": 4}
    assert queue.pair(first).outcome == "assigned"
    with pytest.raises(OtherIndex, match="another unique index of table 'seats', 'one_to_a_seat', refuses this row"):
        queue.pair({**first, "tid": 2, "taskid": 2})
    assert queue.pair(first).outcome == "already assigned"
    assert queue.pair({**first, "tid": 2}).outcome == "already assigned"
    assert queue.pair({"tid": 2, "taskid": 2, "room": 3, "seat": 5}).outcome == "assigned"


def test_a_primary_key_that_is_not_the_key_is_another_unique_index(backend: Backend) -> None:
    backend.run("create table seats (id int primary key, tid int not null unique, taskid int unique)")
    queue = another(backend, "seats", TO_TASK)
    assert queue.pair({"id": 1, "tid": 1, "taskid": 1}).outcome == "assigned"
    with pytest.raises(OtherIndex, match=r"PRIMARY|seats_pkey"):
        queue.pair({"id": 1, "tid": 2, "taskid": 2})


def test_another_unique_index_that_refuses_a_worker_is_named(backend: Backend) -> None:
    """One worker a shift: the row that is free has a shift that the worker has elsewhere."""
    backend.run("create table shifts (nr int primary key, worker varchar(9) unique, half varchar(9))")
    backend.run("alter table shifts add column team char(1) generated always as (left(worker, 1)) stored")
    backend.run("create unique index one_of_a_team on shifts (half, team)")
    backend.run("insert into shifts (nr, worker, half) values (1, null, 'am'), (2, null, 'am')")
    queue = another(backend, "shifts", Columns(key="nr", assignee="worker"))
    assert queue.assign("ada").outcome == "assigned"
    with pytest.raises(OtherIndex, match="'one_of_a_team', refuses this row"):
        queue.assign("abe")
    assert queue.assign("bob").outcome == "assigned"
