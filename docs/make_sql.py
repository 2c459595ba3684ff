"""Write docs/sql.md: what claimjobs sends, from real servers. Run `python -m docs.make_sql` in the repository.

`statements` compiles every statement of a job's way without a server; the tests compare the page with it. `main`
runs that way on a server of each family and adds plans and locks; it fails where a statement really sent is
not one of those compiled.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.batch.settle import Outcomes
from claimjobs.claim.claimed_values import ClaimedValues
from claimjobs.claim.row_reader import RowReader
from claimjobs.dialects import DIALECTS, Dialect
from claimjobs.dialects.types import Instant, database_now
from claimjobs.lease.idle_checks import WakeCondition
from claimjobs.options import Liveness
from claimjobs.statements import batches, owners, pause, purge, settle
from claimjobs.statements import dead_jobs as dead
from claimjobs.statements import idle as sleepers
from claimjobs.statements import insert as inserts
from claimjobs.statements.claim import claim, claim_batch
from claimjobs.statements.find import Selection, find, how_many, keyset_order_of
from claimjobs.statements.lock import find_and_lock, lock, lock_first
from claimjobs.statements.mark import mark
from claimjobs.table.batches import OpenBatches
from claimjobs.table.create import tables_for
from claimjobs.table.ddl import ddl
from claimjobs.table.definitions import DEFAULT_TABLE, FIRST_OWNER, article_table, batches_table, owner_table
from claimjobs.table.job_state import StateByBatches
from claimjobs.table.roles import ColumnRoles, roles_of
from docs.sql_format import formatted
from docs.sql_texts import TEXTS
from tests.backends import Backend, Servers
from tests.conformance.owners import declare_dead, hold_of, still

PAGE: Final = Path(__file__).with_name("sql.md")
ROWS: Final = 20_000
SIZE: Final = 100

URLS: Final = {"postgres": "postgresql+psycopg://", "mysql": "mysql+pymysql://", "mariadb": "mariadb+pymysql://"}
"""Enough to compile for a database; nothing is connected to."""

EXPLAIN: Final = {"postgres": "EXPLAIN (COSTS OFF)", "mysql": "EXPLAIN FORMAT=TRADITIONAL", "mariadb": "EXPLAIN"}

OURS: Final = "claimjobs_"
"""What the names of parameters begin with that a column of the user's might have; left out here."""
GIVEN: Final = (
    *("me", "size", "limit", "keys", "candidates", "meant", "after_0", "after_1", "d", "e"),
    *("host", "pid", "claims", "lease", "since", "group_size", "until", "number", "seconds", "json"),
)
"""Parameters that differ from run to run. All others are constants of the statement."""
CAST: Final = r"::TIMESTAMP WITH TIME ZONE|::\w+"

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

What a table of your own changes: its name, its columns in place of `d` and `e`, its key in place of `id`, your
`where` beside the condition on `status`, and your `order_by`.
"""


ME: Final = sa.bindparam("claimjobs_me", type_=sa.Integer)

UNPLANNED: Final = (
    "isolation",
    "dates",
    "silence",
    "listen",
    "wait",
    "interrupt",
    "settings",
    "register",
    "hold",
    "locked",
    "paused",
    "plans",
    "others",
    "leave",
    "lead",
    "end session",
    "holder",
    "batch begin",
    "batch others",
    "batch open now",
    "batch locked",
    "batch shorten",
    "batch close all",
)
"""Nothing is to be learned from a plan of these, or there is none."""

ALONE: Final = ("claim", "turn")
"""Statements that are sent without BEGIN and COMMIT."""

# --- without a server ----------------------------------------------------------------------------------------


def statements(family: str) -> dict[str, str]:
    """Every statement by its name, as a person reads it."""
    return {name: readable(statement, family) for name, statement in _built(family).items()}


def _built(family: str) -> dict[str, Any]:
    jobs, now = article_table(), database_now()
    roles, dialect = roles_of(jobs), _dialect(family)
    selection, target = Selection(roles.due(now), roles.default_order), settle.SettleGuard(roles, dialect, roles.mine)
    return {
        **_claims(roles, dialect, selection, now),
        "done": settle.delete(target),
        "kept": settle.keep(target, now),
        "released": settle.release(target),
        "retried": settle.retry(target, now, errors={1: "ValueError: ..."}, delays={1: 0.75}),
        "dead": settle.mark_dead(target, now, {1: "ValueError: ..."}),
        "suspects": settle.suspect(
            target, now, errors=dict.fromkeys((1, 2), "ValueError: ..."), delays={1: 0.75, 2: 0.6}
        ),
        **({} if dialect.returns_what_it_writes else {"still mine": settle.still_mine(target)}),
        "enqueue": inserts.insert_rows(roles).values(d=sa.bindparam("d"), e=sa.bindparam("e")),
        **_life(roles, dialect),
        **_reclaiming(roles, dialect),
        "list": dead.dead_page(roles, dialect, RowReader(roles, dialect).columns, ()),
        "revive": dead.retry_dead(roles, dialect, now),
        "drop": dead.drop_dead(roles, dialect),
        **_clean_up(roles, dialect),
        **{f"batch {name}": statement for name, statement in _per_batch(roles, dialect, now).items()},
    }


def _per_batch(by_row: ColumnRoles, dialect: Dialect, now: Any) -> dict[str, Any]:
    """The statements of claims="batches" that have no like above."""
    ours = OpenBatches(batches_table(), by_row.name, by_row.key, dialect)
    state = StateByBatches(column=by_row.state.column, values=by_row.state.values, owner=by_row.owner_id, batches=ours)
    roles = replace(by_row, state=state, batches=ours)
    selection = Selection(roles.due(now), roles.default_order, batches=ours)
    target = settle.SettleGuard(roles, dialect, roles.guard)
    return {
        "begin": batches.begin(ours, batches.PER_BATCH),
        "others": batches.owners_by_row(ours, owner_table()),
        **_locks(roles, dialect, selection),
        **{f"{name} after": statement for name, statement in _searches(roles, dialect, selection).items()},
        "record": batches.record(ours, owner_table()),
        "open now": batches.open_now(ours),
        **(_in_pipeline(roles, selection, ours) if dialect.pipelines else {}),
        **({"finish": settle.with_batch(settle.delete(target), ours)} if dialect.returns_what_it_writes else {}),
        "close": batches.close(ours),
        "done": settle.delete(target),
        "locked": batches.locked(ours),
        "numbered": batches.numbered(ours),
        "shorten": batches.shorten(ours),
        **({"still mine": settle.still_mine(target)} if dialect.returns_what_it_writes else {}),
        "held": owners.held(roles),
        "close all": batches.close_all(ours),
    }


def _in_pipeline(roles: ColumnRoles, selection: Selection, ours: OpenBatches) -> dict[str, Any]:
    order, read = keyset_order_of(selection), RowReader(roles, ours.dialect).parts
    assert order is not None  # noqa: S101 - the default order can be entered anywhere
    done = settle.with_batch(settle.delete(settle.SettleGuard(roles, ours.dialect, roles.guard)), ours)
    return {
        "at once": claim_batch(roles, ours.dialect, selection, order, batches=ours, owners=owner_table(), read=read),
        "turn": batches.settle_and_check(done, ours),
    }


def _locks(roles: ColumnRoles, dialect: Dialect, selection: Selection) -> dict[str, Any]:
    read = RowReader(roles, dialect).parts
    if dialect.locks_in_order:
        return {"take": lock_first(roles, dialect, selection, read)}
    if dialect.finds_and_locks_at_once:
        return {"take": find_and_lock(roles, dialect, selection, read)}
    return {"find": find(roles, selection), "lock": lock(roles, dialect, selection, read)}


def _searches(roles: ColumnRoles, dialect: Dialect, selection: Selection) -> dict[str, Any]:
    walk = keyset_order_of(selection)
    assert walk is not None  # noqa: S101 - the default order can be entered anywhere
    found = _locks(roles, dialect, walk.after(selection, dialect))
    return {name: statement for name, statement in found.items() if name != "lock"}


def _clean_up(roles: ColumnRoles, dialect: Dialect) -> dict[str, Any]:
    old = purge.old(roles, "done", sa.bindparam("until", type_=Instant()))
    return {"old": purge.purge_page(roles, dialect, old, None), "purge": purge.delete_old(roles, dialect, old)}


def _life(roles: ColumnRoles, dialect: Dialect) -> dict[str, Any]:
    ours = owner_table()
    row: dict[str, Any] = {name: sa.bindparam(name) for name in ("host", "pid", "claims", "lease")}
    names = ("settings", "isolation", "dates")
    settings = dict(zip(names, map(sa.text, dialect.sessions.settings(Liveness().lock_timeout)), strict=False))
    return {
        **settings,
        "silence": sa.text(dialect.sessions.silence_setting(Liveness().lease)),
        "register": owners.register(ours).values(row),
        "hold": sa.select(dialect.sessions.try_session_lock(ME)),
        "locked": owners.locked(ours),
        "paused": pause.read(roles.name),
        "others": batches.owners_by_batch(batches_table(), roles.name),
        "beat": owners.beat(ours),
        **({} if dialect.sessions.forget_plans is None else {"plans": dialect.sessions.forget_plans}),
        **_asleep(ours, roles, dialect),
        "held": owners.held(roles),
        "leave": owners.leave(ours),
    }


def _asleep(ours: sa.Table, roles: ColumnRoles, dialect: Dialect) -> dict[str, Any]:
    work = sleepers.work(roles, Selection(roles.due(database_now()), roles.default_order))
    listen = dialect.waking.listen(FIRST_OWNER)
    return {
        **({} if listen is None else {"listen": listen}),
        "lie down": sleepers.mark_asleep(ours),
        "check": sleepers.check(ours, work),
        "careful": sleepers.careful(ours, work, dialect=dialect, roles=roles),
        "call": sleepers.wake(ours, dialect, DEFAULT_TABLE),
        **({"interrupt": dialect.waking.interrupt(4711), "wait": _sleep()} if dialect.interrupts else {}),
    }


def _sleep() -> Any:
    return sa.select(sa.func.sleep(sa.bindparam("seconds")))


def _reclaiming(roles: ColumnRoles, dialect: Dialect) -> dict[str, Any]:
    ours = owner_table()
    return {
        "lead": sa.select(dialect.sessions.try_named_lock(f"reaper of {roles.name}")),
        "look": owners.everyone(ours, dialect),
        "sweep": owners.unknown(roles, ours),
        "end session": dialect.sessions.end_session(4711),
        "seize": owners.seize(ours),
        "declare dead": owners.declare_dead(ours),
        "left behind": owners.left_behind(roles),
        "claims of": owners.claims_of(ours),
        "holder": sa.select(dialect.sessions.lock_holder(ME)),
    }


def _claims(roles: ColumnRoles, dialect: Dialect, selection: Selection, now: Any) -> dict[str, Any]:
    walk = keyset_order_of(selection)
    assert walk is not None  # noqa: S101 - the default order can be entered anywhere
    after = walk.after(selection, dialect)
    read = RowReader(roles, dialect, known=ClaimedValues(roles).names).parts
    counts = {"count": how_many(roles, selection), "count after": how_many(roles, after)}
    if dialect.claims_in_one_statement:
        one = partial(claim, roles, dialect, now=now, owners=owner_table(), read=read)
        done = settle.delete(settle.SettleGuard(roles, dialect, roles.mine)).cte("claimjobs_settled")
        return {
            "claim": one(selection),
            "claim after": one(after),
            "turn": one(after, settled=done),
            "turn at head": one(selection, settled=done),
            **counts,
        }
    marks = {"mark": mark(roles, dialect, now, owner_table())}
    if dialect.finds_and_locks_at_once:
        take = partial(find_and_lock, roles, dialect, read=read)
        return {"take": take(selection), "take after": take(after), **counts, **marks}
    finds = {"find": find(roles, selection), "find after": find(roles, after)}
    return {**finds, "lock": lock(roles, dialect, selection, read), **marks}


def _dialect(family: str) -> Dialect:
    name, driver = ("postgresql", "psycopg") if family == "postgres" else (family, "pymysql")
    return DIALECTS[name](driver)


def compiled(statement: Any, family: str) -> Any:
    """As for a server of the oldest version that is supported, with parameters as `:name`."""
    dialect: Any = sa.create_engine(URLS[family], paramstyle="named").dialect
    dialect.server_version_info = _dialect(family).oldest
    if family == "mysql":
        dialect.supports_for_update_of = True  # learned from a server's version otherwise
    many = isinstance(statement, sa.Insert) and statement.table.name == DEFAULT_TABLE
    return statement.compile(dialect=dialect, for_executemany=many)


def readable(statement: Any, family: str) -> str:
    """SQL with its constants in place, a clause a line."""
    text = compiled(statement, family)
    sql = re.sub(r"__\[POSTCOMPILE_(\w+?)(~~[^\]]*)?\]", r":\1", str(text)).replace(f":{OURS}", ":")
    for name, value in text.params.items():
        if name.removeprefix(OURS) not in GIVEN:
            sql = re.sub(rf"(?<!:):{name}\b({CAST})?", _literal(value), sql)
    return formatted(sql)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(value)


# --- on a server ---------------------------------------------------------------------------------------------


@dataclass
class Sent:
    """What went to the server, and what that did."""

    plans: dict[str, str] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)


class Listener:
    """Recognises each statement that an engine sends; explains it, and counts the locks before the commit."""

    def __init__(self, backend: Backend, engine: sa.Engine) -> None:
        self.sent = Sent()
        self._backend = backend
        self._names = {_shape(str(compiled(s, backend.family))): name for name, s in _built(backend.family).items()}
        self._shapes = set(self._names)
        self._last = ""
        self._asking = backend.new_engine()
        sa.event.listen(engine, "before_cursor_execute", self._on_statement)
        sa.event.listen(engine, "commit", self._on_commit)

    def not_sent(self) -> list[str]:
        """The statements that nobody has sent yet."""
        return sorted(self._names[shape] for shape in self._shapes)

    def _on_statement(self, _connection: Any, _cursor: Any, statement: str, values: Any, _: Any, many: bool) -> None:
        if re.match(r"(?i)(SAVEPOINT|RELEASE|ROLLBACK|DESCRIBE|SHOW|SET autocommit)\b", statement) or _looks_around(
            statement
        ):
            return
        name = self._names.get(_shape(statement))
        if name is None:
            raise SystemExit(f"{self._backend.family}: a statement that is not on the page was sent:\n{statement}")
        self._last = name
        self._shapes.discard(_shape(statement))
        # Once: MySQL reads a single row already to explain, and would wait for the lock that it explains.
        if not many and name not in UNPLANNED and name not in self.sent.plans:
            self.sent.plans[name] = self._plan(statement, values)
            if name in ALONE:
                self.sent.locks[name] = self._locks_of(statement, values)

    def _plan(self, statement: str, values: Any) -> str:
        with self._asking.connect() as connection:
            found = connection.exec_driver_sql(f"{EXPLAIN[self._backend.family]} {statement}", values)
            plan = _table(found.mappings()) if "table" in found.keys() else "\n".join(row[0] for row in found)  # noqa: SIM118
        return re.sub(r"\{(\d+,\d+),[\d,]+,(\d+)\}", r"{\1,...,\2}", plan)

    def _on_commit(self, _connection: Any) -> None:
        if self._last in ("mark", "batch record", "done", "kept", "released", "retried", "dead", "suspects"):
            self.sent.locks.setdefault(self._last, self._locks())

    def _locks_of(self, statement: str, values: Any) -> str:
        """Of one that is a transaction by itself: when it is over nothing is locked any more."""
        with self._asking.connect() as connection:
            connection.exec_driver_sql(statement, values)
            return self._locks()  # and it is rolled back

    def _locks(self) -> str:
        if self._backend.family != "mysql":
            return f"{self._backend.locked()} rows"
        counted = Counter(self._backend.lock_table())
        return ", ".join(f"{count} in `{index}` ({mode})" for (index, mode), count in sorted(counted.items()))


def _looks_around(statement: str) -> bool:
    words = (
        "pg_catalog",
        "pg_attribute",
        "pg_class",
        "pg_settings",
        "transaction_read_only",
        "information_schema",
        "@@",
        "pg_backend_pid()",
        "connection_id()",
        "pg_postmaster_start_time",
    )
    clock = ("SELECT utc_timestamp(6) AS anon_1", "SELECT now() AS anon_1")
    return any(word in statement for word in words) or statement in clock


def _shape(statement: str) -> str:
    """A statement without its parameters' names, casts and number, and without its spaces."""
    shape = re.sub(r"__\[POSTCOMPILE_[^\]]*\]|%\(\w+\)s|%s|(?<!:):\w+", "?", statement)
    shape = re.sub(rf"\?({CAST})", "?", shape)
    shape = re.sub(r"LISTEN claimjobs_\d+|sleep\(.*?\) AS \w+", "?", shape)
    shape = re.sub(r"\?(, \?)+", "?", shape)
    return " ".join(re.sub(r"\(\?\)(, \(\?\))+", "(?)", shape).split())


def _table(rows: Any) -> str:
    columns = ("table", "type", "key", "rows", "Extra")
    cells = [columns, *(tuple(str(row.get(column) or "") for column in columns) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def look(backend: Backend) -> Sent:
    """Run a job's way with every outcome."""
    backend.make()
    engine = backend.new_engine()
    listener = Listener(backend, engine)
    with still(Queue(engine, article_table())) as queue:
        queue.enqueue({"d": f"{number:064}", "e": "e" * 64} for number in range(ROWS))
        queue.enqueue([{"d": "few", "e": "rows"}] * 2)  # on Postgres many are sent as data
        backend.analyze()
        for outcome in ("done", "release", "retry", "dead", "lost"):
            _work(queue, outcome, backend)
        _go_on(queue)
        _live(queue)
        _reclaim(queue, backend)
        _bury(queue)
        hold_of(queue).read_pause()  # as a heartbeat does, after claims
        queue.claim(1)  # held, and released when the queue is closed
    with still(Queue(engine, article_table(), claims="batches")) as queue:
        _claim_per_batch(queue)
    with still(Queue(engine, article_table(), on_done="keep")) as queue:
        _work(queue, "done", backend)
        backend.run("UPDATE jobs SET owner_date = '2020-01-01 00:00:00' WHERE status = 'done'")
        queue.purge(60)
        _work(queue, "suspects", backend)
    engine.dispose()
    if missing := listener.not_sent():
        raise SystemExit(f"{backend.family}: on the page, but never sent: {', '.join(missing)}")
    return listener.sent


def _go_on(queue: Queue) -> None:
    """From batch to batch, from the head and after a place; and a claim that gets fewer jobs than it wants."""
    for count, batch in enumerate(queue.batches(SIZE, where=None)):
        with batch:
            batch.done()
        hold_of(queue).restart_from_head() if count == 1 else None
        if count == 3:
            break
    with queue.claim(SIZE) as batch:
        batch.done()
    for size in (SIZE, ROWS, ROWS) * 2:  # after a place, and from the head; twice, because a pause ends the first
        with queue.claim(size) as batch:
            batch.done() if size == SIZE else batch.release()


def _claim_per_batch(queue: Queue) -> None:
    """From batch to batch; a batch that is settled as a whole; and one of which a job is settled before the others."""
    for batch in islice(queue.batches(SIZE), 2):
        with batch:
            batch.done()
            hold_of(queue).restart_from_head()
    for _ in range(2):  # from the head, and after a place
        with queue.claim(SIZE) as batch:
            batch.done()
    hand = hold_of(queue)
    hand.restart_from_head()
    with queue.claim(2) as batch:
        first, _ = (job.key for job in batch.jobs)
        _look_again(queue, [first])
        hand._settler.settle(hand._connector, hand.owner.id, Outcomes(done=[first]))
        batch.done()


def _look_again(queue: Queue, keys: list[Any]) -> None:
    """It is sent by itself: two claims that meet at one job cannot be had at will."""
    ours = hold_of(queue)._backend.roles.batches
    assert ours is not None  # noqa: S101 - claims="batches"
    hold_of(queue)._connector.rows(batches.open_now(ours), {"claimjobs_keys": keys, **ours.range_of(keys)})


def _live(queue: Queue) -> None:
    hand = hold_of(queue)
    hand.owner.beat()
    hand.heartbeat._reclaim_dead()
    condition = WakeCondition(queue._parts.plan(None).work, 1.0, 1.0)
    idle_wait = hand.sleeper._idle_wait

    with hand._connector.idle() as idle:
        idle_wait._begin(idle.connection)
        for careful in (False, True):
            idle_wait._check(idle.connection, condition, for_work=True, careful=careful)
        idle.wait(0.01)
    queue.enqueue([{"d": "d", "e": "e"}] * 2)


def _reclaim(queue: Queue, backend: Backend) -> None:
    """From an owner that is found dead, and from one whose process is known to have ended."""
    dead_one, ended = (still(Queue(queue.engine, article_table())) for _ in range(2))
    dead_one.claim(2)
    declare_dead(backend, dead_one.owner_id)
    queue.reclaim()
    queue.reclaim_owner(ended.owner_id)
    for each in (dead_one, ended):
        each.close()
    backend.run("UPDATE jobs SET suspect = 0 WHERE suspect > 0")  # so that the next batch is one of fresh jobs


def _bury(queue: Queue) -> None:
    [job] = queue.dead.list()
    queue.dead.retry([job.key])
    queue.dead.drop([job.key])


FEW: Final = {"retry": 1, "dead": 1, "suspects": 2}
"""Jobs of a batch that fails: their statement has a line for each."""


def _work(queue: Queue, outcome: str, backend: Backend) -> None:
    with queue.claim(FEW.get(outcome, SIZE)) as batch:
        if outcome == "suspects":
            batch.blame(ValueError("..."))
        elif outcome in ("retry", "dead"):
            batch.fail(batch[0], ValueError("..."), retry=outcome == "retry")
        elif outcome == "lost":
            backend.run("UPDATE jobs SET status = 'unclaimed', owner_id = NULL WHERE id = :id", id=batch[0].key)
            batch.done()
        elif outcome == "done":
            batch.done()


# --- the page ------------------------------------------------------------------------------------------------


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
