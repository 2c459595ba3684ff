"""Write docs/sql.md: what claimjobs sends, from real servers. Run `python -m docs.make_sql` in the repository.

`docs.sql_statements` compiles every statement of a job's way without a server; the tests compare the page with it.
`main` runs that way on a server of each family (`docs.sql_traffic`) and adds plans and locks; it fails where a
statement really sent is not one of those compiled.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from claimjobs.table.create import tables_for
from claimjobs.table.ddl import ddl
from claimjobs.table.definitions import DEFAULT_TABLE
from docs.sql_statements import URLS, statements
from docs.sql_texts import TEXTS
from docs.sql_traffic import ROWS, SIZE, Sent, look
from tests.backends import Backend, Servers

PAGE: Final = Path(__file__).with_name("sql.md")

HEAD: Final = f"""\
# The SQL that claimjobs sends

Made by `python -m docs.make_sql` from real servers; do not edit. `tests/docs/test_pages.py` fails when a
statement on this page is not the one that the library compiles.

The table is the one that `claimjobs setup-tables` makes, with {ROWS:,} waiting jobs; batches of {SIZE}. `:name` is a
parameter that changes from run to run; `:keys` stands for a list of them.
In truth they are called `claimjobs_keys` and so on, as no column is. Constants (`'unclaimed'`) are sent
as parameters as well, and are shown as their values here. Every transaction is READ COMMITTED, whatever the
server's default. A claim is one transaction; so is a settle; from one batch of a loop to the next they are one
together. So is a reclaim, from locking the owner's row to deleting it. What a new connection asks about its server
(versions, whose session this is, since when the server runs) is not shown, nor that MySQL commits each statement by
itself while an owner sleeps (`SET autocommit`).

The row locks were counted just before the commit, of a statement that is sent without BEGIN and COMMIT within a
transaction of its own: on MySQL in `performance_schema.data_locks`, on the others by
a second session that tried to lock every row with SKIP LOCKED.

The statements at the end of each part, whose headings begin with "Claims per batch", are those of `claims="batches"`.
All its outcomes are written as those above them, but guarded by `status = 'unclaimed'`: the batch was closed before.

Not on this page: what a side-car, `hold="transaction"`, `order_by=()` (any order) and a Locking of your own send
instead; writing a pause; a sum over `claimjobs_batches`; and what is asked for a person or a monitor (`status`,
metrics and `list` may read the whole table). An engine with `echo=True` logs those of your queue.

What a table of your own changes: its name, its columns in place of `d` and `e`, its key in place of `id`, your
`where` beside the condition on `status`, and your `order_by`.
"""


def section(backend: Backend, sent: Sent) -> Iterator[str]:
    """A database's part of the page."""
    version = re.match(r"[\d.]+", backend.server.version)
    yield f"\n## {backend.dialect.title}\n"
    yield f"Seen on {backend.dialect.title} {version[0] if version else backend.server.version}."
    for name, sql in statements(backend.family).items():
        title, purpose = TEXTS[name]
        yield f"\n### {title}\n\n{purpose}\n"
        yield f"```sql\n{sql}\n```"
        if plan := sent.plans.get(name):
            yield f"\n```text\n{plan}\n```"
        if locks := sent.locks.get(name):
            yield f"\nRow locks at the commit: {locks}."
    yield f"\n### The tables\n\n```sql\n{tables(backend.family)}\n```"


def tables(family: str) -> str:
    """The DDL, as `claimjobs setup-tables --sql` prints it, but for the indexes: those of a Table have no order."""
    printed = ddl(sa.create_engine(URLS[family]), tables_for(DEFAULT_TABLE)).strip().split("\n\n")
    indexes = sorted(statement for statement in printed if statement.startswith("CREATE INDEX"))
    rest = iter(indexes)
    return "\n\n".join(next(rest) if statement in indexes else statement for statement in printed)


@contextmanager
def _lent(servers: Servers, family: str) -> Iterator[Backend]:
    backend = servers.lend(family)
    try:
        yield backend
    finally:
        backend.close()


def main() -> None:
    """Write the page."""
    servers = Servers()
    parts = [HEAD]
    try:
        for family in URLS:
            with _lent(servers, family) as backend:
                parts += section(backend, look(backend))
    finally:
        servers.close()
    PAGE.write_text(re.sub(r"\n{3,}", "\n\n", "\n".join([*parts, ""])), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")


if __name__ == "__main__":
    main()
