"""The loop of the article, with its spread by a random first letter, which is its best setting with several consumers.

https://blog.koehntopp.info/2021/07/13/mysql-a-job-queue-in-python.html, as benchmarks/article.py has it: plain drivers,
batches of 100, MySQL at REPEATABLE READ. It keeps no order.
"""

from __future__ import annotations

from benchmarks import article
from benchmarks.peers.driver import Line, Order, did


def fill(order: Order) -> None:
    article.setup_tables(order.url)
    with article.connected(order.url) as db, db.cursor() as cursor:
        for chunk in order.chunks():
            cursor.executemany("insert into jobs (d, e, status) values (%s, %s, 'unclaimed')", chunk)
        db.commit()


def work(order: Order, line: Line) -> None:
    def handle(jobs: list[article.Row]) -> None:
        for _, d, _ in jobs:
            did(d)

    with article.connected(order.url) as db:
        line.ready()
        article.consume(db, order.number + 1, handle, letters=True)
        line.stop.wait()
