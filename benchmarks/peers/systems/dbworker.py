"""dbworker with one coordinator, `concurrency` as many handler processes as workers.

https://github.com/zysilm/dbworker/blob/main/doc/usage.md

- The rows of a table of ours are its jobs, as for claimjobs. A handler is called with one of them and a session.
- `concurrency` is its one setting of speed. The coordinator claims as many jobs at once as handlers are idle: its
  batch size is 1 with one worker, and no more than the workers with several.
- A job that is done is a row in a table of its own that says 'finished'; the row of ours stays.
- The handlers' processes are started and connected before the start line.
"""

from __future__ import annotations

import threading
from typing import Any

import sqlalchemy as sa
from dbworker import Coordinator, Finished
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from benchmarks.peers.driver import Line, Order, note


class Base(DeclarativeBase):
    pass


class Job(Base):
    __tablename__ = "jobs"

    id: Mapped[int] = mapped_column(primary_key=True)
    d: Mapped[str] = mapped_column(sa.String(64))
    e: Mapped[str] = mapped_column(sa.String(64))


def handle(job: Job, _session: Session) -> Finished:
    """Runs in a child of the coordinator."""
    note(job.d)
    return Finished()


def _coordinator(order: Order, started: threading.Event) -> Any:
    def eligible() -> Any:
        started.wait()
        return sa.select(Job).order_by(Job.id)

    coordinator = Coordinator(sessionmaker(sa.create_engine(order.url)), database_url=order.url)
    coordinator.transactional_worker(name="bench", source=Job, eligible=eligible, concurrency=order.workers)(handle)
    return coordinator


def fill(order: Order) -> None:
    engine = sa.create_engine(order.url)
    Base.metadata.create_all(engine)
    _coordinator(order, threading.Event()).create_worker_tables()
    with engine.begin() as connection:
        for chunk in order.chunks():
            connection.execute(sa.insert(Job), [{"d": d, "e": e} for d, e in chunk])


def work(order: Order, line: Line) -> None:
    started = threading.Event()
    coordinator = _coordinator(order, started)
    coordinator.start()
    line.ready()
    started.set()
    line.stop.wait()
    coordinator.stop()
