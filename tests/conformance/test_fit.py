"""What a column cannot hold is told at the first look, before a queue seems empty or a consumer ends by it."""

from __future__ import annotations

import enum
import re
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.postgresql import DOMAIN, UUID

from claimjobs import Columns, Queue
from claimjobs.errors import ColumnUnfit
from tests.backends import Backend

HOLDS: tuple[Literal["lease"], Literal["transaction"]] = ("lease", "transaction")


OPEN_OR_HELD = Columns(status="phase", states={"unclaimed": "open", "claimed": "held"})
NAMES = ("caf\u00e9s", "cafes")
"""Tables whose names are equal to most collations of MySQL."""


def table_of(*columns: sa.schema.SchemaItem) -> sa.Table:
    key = sa.Column("id", sa.Integer, primary_key=True)
    return sa.Table("tasks", sa.MetaData(), key, *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB")


def made(backend: Backend, *columns: sa.schema.SchemaItem) -> None:
    """A table that is known by its name alone, as a user's is."""
    table_of(*columns).create(backend.engine)
    backend.make()


def complaint(queue: Queue, kind: type[Exception]) -> str:
    """What the check says, and a claim says too."""
    with pytest.raises(kind) as raised:
        queue.check()
    with pytest.raises(kind):
        queue.claim()
    return str(raised.value)


# --- the values of states --------------------------------------------------------------------------------------------

PHASES = sa.Enum("open", "taken", "over", name="phase")


@pytest.mark.parametrize(
    ("type_", "states", "told"),
    [
        (PHASES, {"unclaimed": "opne"}, "hold 'opne', which is to mean 'unclaimed': it holds 'open', 'taken', 'over'"),
        (PHASES, {"unclaimed": "open", "done": 2}, "hold 2, which is to mean 'done': it holds 'open', 'taken', 'over'"),
        (sa.String(4), {"unclaimed": "open", "claimed": "taken"}, "hold 'taken', .* 'claimed': it holds 4 characters"),
        (sa.String(4), {"unclaimed": 0}, "hold 0, .*: it holds text \\(in quotes: '\"0\"'\\)"),
        (sa.String(4), None, "hold 'unclaimed', which is to mean 'unclaimed': it holds 4 characters"),
        (sa.SmallInteger, {"unclaimed": "open"}, "hold 'open', .*: it holds whole numbers"),
        (sa.SmallInteger, {"unclaimed": 0, "dead": 32_768}, "hold 32768, .* 'dead': it holds -32768 to 32767"),
        (sa.Integer, {"unclaimed": None}, "hold None, .*: it is NOT NULL"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("hold", HOLDS)
def test_a_value_that_is_mistyped(backend: Backend, *, type_: Any, states: Any, told: str, hold: Any) -> None:
    made(backend, sa.Column("phase", type_, nullable=False), sa.Column("owner_id", sa.Integer))
    queue = backend.bare_queue("tasks", columns=Columns(status="phase", states=states), hold=hold)
    message = complaint(queue, ColumnUnfit)
    assert re.search(told, message), message
    assert "column 'phase' of table 'tasks' cannot" in message
    assert "check the value, as in Columns(states={" in message


def test_a_word_for_a_truth(backend: Backend) -> None:
    made(backend, sa.Column("over", sa.Boolean, nullable=False), sa.Column("owner_id", sa.Integer))
    queue = backend.bare_queue("tasks", columns=Columns(status="over", states={"unclaimed": "no", "done": "yes"}))
    assert "cannot hold 'no', which is to mean 'unclaimed'" in complaint(queue, ColumnUnfit)


def test_what_is_in_the_database_counts_not_its_description(backend: Backend) -> None:
    made(backend, sa.Column("phase", PHASES, nullable=False), sa.Column("owner_id", sa.Integer))
    described = table_of(sa.Column("phase", sa.String(20)), sa.Column("owner_id", sa.Integer))
    queue = backend.bare_queue(described, columns=Columns(status="phase", states={"unclaimed": "new"}))
    assert "cannot hold 'new', which is to mean 'unclaimed': it holds 'open', 'taken'" in complaint(queue, ColumnUnfit)


class Phase(enum.Enum):
    OPEN = 1
    TAKEN = 2


def test_a_value_is_what_its_type_makes_of_it(backend: Backend) -> None:
    """`Phase.OPEN` is 'OPEN' in the database."""
    table = table_of(sa.Column("phase", sa.Enum(Phase)), sa.Column("owner_id", sa.Integer))
    table.create(backend.engine)
    backend.make()
    columns = Columns(status="phase", states={"unclaimed": Phase.OPEN, "claimed": Phase.TAKEN})
    queue = backend.bare_queue(table, columns=columns, on_done="delete")
    queue.enqueue({"id": 1, "phase": Phase.OPEN})
    with queue.claim() as batch:
        assert [job.phase for job in batch] == [Phase.TAKEN]


def test_null_can_mean_a_state(backend: Backend) -> None:
    made(backend, sa.Column("outcome", sa.String(9)), sa.Column("owner_id", sa.Integer))
    columns = Columns(status="outcome", states={"unclaimed": None, "claimed": "at work", "done": "done"})
    queue = backend.bare_queue("tasks", columns=columns, on_done="keep")
    queue.enqueue([{"id": 1}, {"id": 2}])
    with queue.claim(1) as batch:
        batch.done()
    assert [row["outcome"] for row in backend.rows("tasks")] == ["done", None]
    assert (queue.stats().unclaimed, queue.stats().done, queue.stats().others) == (1, 1, {})


def test_rows_in_no_state_that_is_named_are_counted(backend: Backend) -> None:
    """As where a value is mistyped that any text column holds."""
    made(backend, sa.Column("phase", sa.String(9)), sa.Column("owner_id", sa.Integer))
    queue = backend.bare_queue("tasks", columns=Columns(status="phase", states={"unclaimed": "opne"}))
    queue.enqueue([{"id": n, "phase": phase} for n, phase in enumerate(["open", "open", "over", None, None, None])])
    assert (queue.stats().unclaimed, queue.stats().left) == (0, 0)
    assert list(queue.stats().others.items()) == [(None, 3), ("open", 2), ("over", 1)]


def test_states_are_counted_as_the_database_compares_them(backend: Backend) -> None:
    """A CHAR is filled with blanks on Postgres; most collations of MySQL take "OPEN" for "open"."""
    made(backend, sa.Column("phase", sa.CHAR(9)), sa.Column("owner_id", sa.Integer))
    phase = "OPEN" if backend.has("table collation") else "open"
    backend.insert("tasks", [{"id": n, "phase": phase} for n in (1, 2, 3)])
    queue = backend.bare_queue("tasks", columns=OPEN_OR_HELD, on_done="delete")
    assert (queue.stats().unclaimed, queue.stats().due, queue.stats().others) == (3, 3, {})
    assert queue.backlog().unclaimed == 3
    with queue.claim(2):
        assert (queue.stats().unclaimed, queue.stats().claimed, queue.stats().others) == (1, 2, {})


def test_owners_of_a_table_with_a_similar_name_are_not_counted(backend: Backend) -> None:
    for name in NAMES:
        table_of(sa.Column("owner_id", sa.Integer)).to_metadata(sa.MetaData(), name=name).create(backend.engine)
    backend.make()
    first, second = (backend.bare_queue(name, columns=Columns(status=None), on_done="delete") for name in NAMES)
    assert first.owner_id
    assert sum(second.backlog().owners.values()) == len(second.stats().owners) == 0
    assert sum(first.backlog().owners.values()) == len(first.stats().owners) == 1


def test_rows_of_one_state_with_and_without_an_owner_are_counted_together(backend: Backend) -> None:
    """A row that is available is, whoever had it last."""
    made(backend, sa.Column("available", sa.Boolean), sa.Column("owner_id", sa.Integer))
    queue = backend.bare_queue("tasks", columns=Columns(status="available"))
    backend.insert(
        "tasks", [{"id": n, "available": True, "owner_id": owner} for n, owner in enumerate([None, 7, 8], 1)]
    )
    assert queue.stats().unclaimed == 3


# --- the columns of roles --------------------------------------------------------------------------------------------

NO_OWNERS: dict[str, tuple[Any, str]] = {
    "text": (sa.String(3), r"VARCHAR\(3\)"),
    "a uuid": (UUID().with_variant(sa.CHAR(36), "mysql", "mariadb"), r"UUID|CHAR\(36\)"),
    "a small number": (sa.SmallInteger, "SMALLINT"),
    "a short number": (sa.Numeric(7, 0), r"(NUMERIC|DECIMAL)\(7, 0\)"),
    "a truth": (sa.Boolean, "BOOLEAN|TINYINT"),
    "an instant": (sa.DateTime, "TIMESTAMP|DATETIME"),
}


@pytest.mark.parametrize("what", NO_OWNERS)
def test_an_owner_is_a_number(backend: Backend, what: str) -> None:
    type_, shown = NO_OWNERS[what]
    made(backend, sa.Column("worker", type_))
    queue = backend.bare_queue("tasks", columns=Columns(status=None, owner_id="worker"))
    message = complaint(queue, ColumnUnfit)
    assert re.search(f"^column 'worker' of table 'tasks' is ({shown}).*, and as owner_id it must be a whole", message)
    assert "and hold ids up to 2,147,483,647: name another one, as in Columns(owner_id=...)" in message
    backend.run(message.rpartition("to add one: ")[2])
    queue = backend.bare_queue("tasks", columns=Columns(status=None, owner_id="claim_owner_id"), on_done="delete")
    queue.enqueue({"id": 1})
    assert len(queue.claim()) == 1


def test_a_domain_holds_what_its_type_holds(anywhere: Backend) -> None:
    anywhere.run("CREATE DOMAIN small AS SMALLINT")
    small = DOMAIN("small", sa.SmallInteger, create_type=False)
    made(anywhere, sa.Column("phase", small), sa.Column("worker", small))
    queue = anywhere.bare_queue("tasks", columns=Columns(status=None, owner_id="worker"))
    assert "is SMALLINT, and as owner_id it must be a whole" in complaint(queue, ColumnUnfit)
    states = {"unclaimed": 0, "done": 32_768}
    queue = anywhere.bare_queue("tasks", columns=Columns(status="phase", states=states), hold="transaction")
    assert "cannot hold 32768, which is to mean 'done': it holds -32768 to 32767" in complaint(queue, ColumnUnfit)


@pytest.mark.parametrize("type_", [sa.Integer, sa.BigInteger, sa.Numeric(12, 0), mysql.INTEGER(unsigned=True)], ids=str)
def test_an_owner_that_is_one(backend: Backend, type_: Any) -> None:
    if isinstance(type_, mysql.INTEGER):
        backend.requires("table collation")  # the families that have this type
    made(backend, sa.Column("worker", type_))
    queue = backend.bare_queue("tasks", columns=Columns(status=None, owner_id="worker"), on_done="delete")
    queue.enqueue([{"id": 1}, {"id": 2}])
    with queue.claim() as batch:
        batch.done(batch[0])
    assert [row["worker"] for row in backend.rows("tasks")] == [None]


@pytest.mark.parametrize("hold", HOLDS)
def test_an_owner_that_nobody_can_leave(backend: Backend, hold: Any) -> None:
    """As an `owner_id` that is the customer's."""
    made(backend, sa.Column("owner_id", sa.Integer, nullable=False), sa.Column("status", sa.String(9)))
    message = complaint(backend.bare_queue("tasks", hold=hold), ColumnUnfit)
    assert "'owner_id' of table 'tasks' is INTEGER" in message
    assert "NOT NULL, and as owner_id it must be NULL for a row that no owner holds" in message


@pytest.mark.parametrize("role", ["attempts", "suspect", "owner_date", "run_at"])
def test_a_role_in_text(backend: Backend, role: str) -> None:
    made(backend, sa.Column("note", sa.String(40)), sa.Column("owner_id", sa.Integer))
    given: dict[str, Any] = {role: "note"}
    message = complaint(backend.bare_queue("tasks", columns=Columns(status=None, **given)), ColumnUnfit)
    assert f"is VARCHAR(40), and as {role} it must be a " in message
    assert f"ALTER TABLE tasks ADD COLUMN claim_{role} " in message


@pytest.mark.parametrize("role", ["owner_date", "run_at"])
def test_an_instant_in_a_date(anywhere: Backend, role: str) -> None:
    """A pause of less than a day would be none."""
    made(anywhere, sa.Column("day", sa.Date), sa.Column("owner_id", sa.Integer))
    given: dict[str, Any] = {role: "day"}
    message = complaint(anywhere.bare_queue("tasks", columns=Columns(status=None, **given)), ColumnUnfit)
    assert f"is DATE, and as {role} it must be a date and time" in message


def test_an_error_is_cut_to_its_column(backend: Backend) -> None:
    made(
        backend,
        *(sa.Column("owner_id", sa.Integer), sa.Column("attempts", sa.Integer), sa.Column("run_at", sa.DateTime)),
        sa.Column("last_error", sa.String(20)),
    )
    queue = backend.bare_queue("tasks", columns=Columns(status=None), on_done="delete")
    queue.enqueue({"id": 1})
    with queue.claim() as batch:
        batch.fail(batch[0], "0123456789" * 3)
    assert [row["last_error"] for row in backend.rows("tasks")] == ["0123456789012345678…"]
