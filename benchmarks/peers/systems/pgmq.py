"""pgmq with its SQL-only installation, its own Python client, `read(qty=...)` and `delete_batch`.

https://github.com/pgmq/pgmq-py

- Its SQL (2,000 lines, no extension to load) comes with the client: `install_pgmq_from_sql`.
- `vt=30`: what is read is invisible for so many seconds, its default; `delete_batch` settles it. `pop` would be one
  statement, but then a process that dies loses what it took.
- A loop, read, call handlers, delete, is all that it asks for; handlers, retries and workers are the user's.
- 1,000 was fastest here, of 100, 500, 1,000.
- Jobs are enqueued with `send_batch`, a thousand in a statement.
"""

from __future__ import annotations

from pgmq import PGMQueue, install_pgmq_from_sql

from benchmarks.peers.driver import Line, Order, did

QUEUE = "bench"
SECONDS_INVISIBLE = 30


def fill(order: Order) -> None:
    install_pgmq_from_sql(dsn=order.dsn)
    queue = _client(order)
    queue.create_queue(QUEUE)
    for chunk in order.chunks():
        queue.send_batch(QUEUE, [{"d": d, "e": e} for d, e in chunk])


def work(order: Order, line: Line) -> None:
    queue = _client(order)
    line.ready()
    while messages := queue.read(QUEUE, vt=SECONDS_INVISIBLE, qty=order.batch):
        for message in messages:
            did(message.message["d"])
        queue.delete_batch(QUEUE, [message.msg_id for message in messages])
    line.stop.wait()


def _client(order: Order) -> PGMQueue:
    return PGMQueue(conn_string=order.dsn, init_extension=False, pool_size=1)
