"""Jobs as instances of a mapped class."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, column_property, mapped_column, relationship, synonym

from claimjobs import Columns
from claimjobs.errors import BadArgument, UnfitTable
from claimjobs.table.predicates import OrderBy, Where
from tests.backends import Backend


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    __table_args__ = {"mysql_engine": "InnoDB"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(20))


class Order(Base):
    """Two columns are its key. One has another name as an attribute, and one in its table, too."""

    __tablename__ = "orders"
    __table_args__ = {"mysql_engine": "InnoDB"}  # noqa: RUF012
    __claimjobs__ = Columns(status=None, owner_id="worker")
    shop: Mapped[int] = mapped_column("shop_id", primary_key=True, autoincrement=False)
    nr: Mapped[int] = mapped_column("number", key="nr", primary_key=True, autoincrement=False)
    customer_id: Mapped[int] = mapped_column(sa.ForeignKey("customers.id"))
    worker: Mapped[int | None]
    sent: Mapped[bool] = mapped_column(default=False)
    customer: Mapped[Customer] = relationship(lazy="joined")


class Task(Base):
    """Two classes have rows in one table."""

    __tablename__ = "tasks"
    __table_args__ = {"mysql_engine": "InnoDB"}  # noqa: RUF012
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "task"}  # noqa: RUF012
    __claimjobs__ = Columns(status=None, owner_id="worker")
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(10))
    worker: Mapped[int | None]


class Mail(Task):
    __mapper_args__ = {"polymorphic_identity": "mail"}  # noqa: RUF012


class Letter(Mail):
    __mapper_args__ = {"polymorphic_identity": "letter"}  # noqa: RUF012


class Call(Task):
    """Its own table has none of the columns of a job."""

    __tablename__ = "calls"
    __table_args__ = {"mysql_engine": "InnoDB"}  # noqa: RUF012
    __mapper_args__ = {"polymorphic_identity": "call"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(sa.ForeignKey("tasks.id"), primary_key=True)


class Chore(Task):
    """Its own table has them, too."""

    __tablename__ = "chores"
    __table_args__ = {"mysql_engine": "InnoDB"}  # noqa: RUF012
    __mapper_args__ = {"polymorphic_identity": "chore"}  # noqa: RUF012
    __claimjobs__ = Columns(status=None, owner_id="helper")
    id: Mapped[int] = mapped_column(sa.ForeignKey("tasks.id"), primary_key=True)
    helper: Mapped[int | None]


class Sale(Base):
    """Only the table says which character set its texts have."""

    __tablename__ = "sales"
    __claimjobs__ = Columns(status=None, owner_id="worker")
    city: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    nr: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker: Mapped[int | None]


class Parcel(Base):
    """Its attributes are more than its columns."""

    __tablename__ = "parcels"
    __table_args__ = {"mysql_engine": "InnoDB"}  # noqa: RUF012
    __claimjobs__ = Columns(status=None, owner_id="worker")
    nr: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    grams: Mapped[int] = mapped_column()
    kilograms: Mapped[float] = column_property(grams / 1_000)
    is_paid: Mapped[bool]
    worker: Mapped[int | None]
    number = synonym("nr")

    @hybrid_property
    def is_heavy(self) -> bool:
        return self.grams > 500


@pytest.fixture
def orders(backend: Backend) -> None:
    backend.make()
    Base.metadata.create_all(backend.engine)
    with Session(backend.engine) as session:
        session.add_all([Customer(id=n, name=f"c{n}") for n in (1, 2)])
        session.add_all([Order(shop=n // 3, nr=n % 3, customer_id=1 + n % 2) for n in range(6)])
        session.commit()


@pytest.mark.usefixtures("orders")
def test_they_come_in_the_order_of_the_jobs(backend: Backend) -> None:
    order = [Order.nr.desc(), Order.shop.desc()]
    queue = backend.bare_queue(Order, order_by=order, on_done="delete")
    with queue.claim(4) as batch, Session(backend.engine) as session:
        found = batch.instances(session)
        assert [(order.shop, order.nr) for order in found] == [job.key for job in batch.jobs]
        assert [order.customer.name for order in found] == ["c2", "c1", "c1", "c2"]
        assert all(order in session for order in found)
        assert len(batch.undecided) == 4


@pytest.mark.usefixtures("orders")
def test_what_they_change_commits_with_the_batch(backend: Backend) -> None:
    """And what a job changed that fails is undone."""
    queue = backend.bare_queue(Order, hold="transaction", on_done=lambda *_: "delete")
    with queue.claim(4) as batch, Session(batch.connection, join_transaction_mode="create_savepoint") as session:
        customers: list[Any] = []
        for job, order in zip(batch, batch.instances(session), strict=True):
            order.customer.name = f"{order.customer.name}!"
            session.flush()
            customers.append(order.customer_id)
            if job.key == (0, 1):
                batch.release(job)
    with Session(backend.engine) as session:
        assert [(order.shop, order.nr) for order in session.scalars(sa.select(Order))] == [(0, 1), (1, 1), (1, 2)]
    assert customers == [1, 2, 1, 2]


@pytest.mark.usefixtures("orders")
def test_a_row_that_is_gone_is_told(backend: Backend) -> None:
    queue = backend.bare_queue(Order, on_done="delete")
    with queue.claim(2) as batch, Session(backend.engine) as session:
        backend.run("DELETE FROM orders WHERE number = 1")
        with pytest.raises(LookupError, match="job 0,1 is gone"):
            batch.instances(session)
        batch.done()
    assert [job.key for job in batch.lost] == [(0, 1)]


def test_a_table_has_none(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue({"d": "x", "e": "y"})
    with queue.claim() as batch, Session(backend.engine) as session, pytest.raises(TypeError, match="a mapped class"):
        batch.instances(session)


def test_a_class_with_some_rows_of_its_table_is_refused_and_its_base_with_a_predicate_is_not(backend: Backend) -> None:
    backend.make()
    Base.metadata.create_all(backend.engine)
    with Session(backend.engine) as session:
        session.add_all([Mail(id=1), Task(id=2), Letter(id=3)])
        session.commit()
    with pytest.raises(UnfitTable, match=r"give Task, with a `where` by which tasks.kind is one of 'mail', 'letter'$"):
        backend.bare_queue(Mail, on_done="delete").claim()
    queue = backend.bare_queue(Task, where=Task.kind.in_(["mail", "letter"]), on_done="delete")
    with queue.claim() as batch, Session(backend.engine) as session:
        assert [type(instance) for instance in batch.instances(session)] == [Mail, Letter]
        batch.done()
    with Session(backend.engine) as session:
        assert session.scalars(sa.select(Task.id)).all() == [2]


def test_a_class_whose_jobs_are_in_the_table_of_its_base_is_refused(database: Backend) -> None:
    database.make()
    Base.metadata.create_all(database.engine)
    with pytest.raises(
        UnfitTable, match=r"in table 'tasks', .* give Task, with a `where` by which .* is one of 'call'$"
    ):
        database.bare_queue(Call, on_done="delete").claim()
    assert not database.bare_queue(Chore, on_done="delete").claim()


@pytest.mark.parametrize("table", [Backend, None, 7, sa.table("jobs", sa.column("id"))])
def test_what_is_no_table_is_refused(anywhere: Backend, table: Any) -> None:
    with pytest.raises(UnfitTable, match=r"name a sqlalchemy\.Table or a class mapped to one"):
        anywhere.bare_queue(table).claim()


@pytest.mark.mariadb("it converts no text of such a list to the character set of its column")
def test_they_are_found_by_texts_of_another_character_set(backend: Backend) -> None:
    backend.make()
    latin = " CHARACTER SET latin1" if backend.has("table collation") else ""
    backend.run(f"CREATE TABLE sales (city VARCHAR(20), nr INT, worker INT, PRIMARY KEY (city, nr)){latin}")
    backend.run("INSERT INTO sales (city, nr) VALUES ('Köln', 1), ('Würzburg', 2)")
    queue = backend.bare_queue(Sale, claims="batches", on_done="delete")
    with queue.claim() as batch, Session(backend.engine) as session:
        assert [(sale.city, sale.nr) for sale in batch.instances(session)] == [("Köln", 1), ("Würzburg", 2)]


def test_its_attributes_are_predicates_and_orders(database: Backend) -> None:
    database.make()
    Base.metadata.create_all(database.engine)
    with Session(database.engine) as session, session.begin():
        session.add_all([Parcel(nr=nr, grams=1_000 * (nr % 2), is_paid=nr < 3) for nr in range(4)])

    def claimed(where: Where, order_by: OrderBy) -> list[int]:
        queue = database.bare_queue(Parcel, where=where, order_by=order_by, on_done="delete")
        with queue.claim() as batch:
            batch.release()
            return [job["nr"] for job in batch.jobs]

    assert claimed(Parcel.is_paid, Parcel.nr) == [0, 1, 2]
    assert claimed(lambda: Parcel.is_heavy, Parcel.number) == [1, 3]
    assert claimed(None, (Parcel.kilograms, Parcel.nr.desc())) == [2, 0, 3, 1]


def test_a_session_may_have_an_engine_for_its_class(anywhere: Backend) -> None:
    anywhere.make()
    Base.metadata.create_all(anywhere.engine)
    queue, row = anywhere.bare_queue(Parcel), {"nr": 1, "grams": 1, "is_paid": True}
    with Session(sa.create_engine("sqlite://"), binds={Parcel: anywhere.engine}) as session, session.begin():
        assert queue.enqueue(row, session) == 1
    assert [found["nr"] for found in anywhere.rows("parcels")] == [1]
    with Session() as session, pytest.raises(BadArgument, match=r"no engine for table .*Parcel.*: give a Connection"):
        queue.enqueue(row, session)
