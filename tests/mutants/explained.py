"""Why some mutants survive: by file, the lines that are changed, and what they are changed into."""

from __future__ import annotations

from typing import Final

EXPLAINED: Final[dict[tuple[str, str, str], str]] = {
    (
        "claimjobs/settle/settler.py",
        "group_size=self.group_size or len(self.suspects),",
        "group_size=(len(self.suspects)),",
    ): "Outcomes are narrowed once, and never again.",
    (
        "claimjobs/claim/candidates.py",
        "if roles.key_index is not None and len({job.key for job in jobs}) < len(jobs):",
        "if (len({job.key for job in jobs}) < len(jobs)):",
    ): "A primary key names no two rows: looking for them there costs time, and finds none.",
    (
        "claimjobs/settle/settler.py",
        "return True # the row of the side-car may be there already, or may never have been written",
        "return None # the row of the side-car may be there already, or may never have been written",
    ): "Who locks does not read which rows were not reached; who leases asks which of them it still holds: none.",
    (
        "claimjobs/lease/owner_row.py",
        "if not self.id or not self._is_alive(connection):",
        "if (not self._is_alive(connection)):",
    ): "No row has the id 0, so that its beat reaches none: one statement more, once.",
    (
        "claimjobs/lease/owner_row.py",
        "self._connector.write(statements.leave(self._table), me, patience=1)",
        "self._connector.write(statements.leave(self._table), me, patience=2)",
    ): "A second more for an owner that leaves without a server: the next reaper takes it out all the same.",
    (
        "claimjobs/lease/sleeper.py",
        "for_work = times.is_due(longest / 2, rarer=self._rarer)",
        "for_work = times.is_due(longest / 3, rarer=self._rarer)",
    ): "How much too early a sleeper may look for work, so that two looks become one: a matter of cost.",
    (
        "claimjobs/lease/sleeper.py",
        "if holds_jobs and self._owner.asleep:",
        "if (holds_jobs):",
    ): "Idle loops claim once more than they need.",
    (
        "claimjobs/database/connection.py",
        "self._outage.attempts += 1",
        "pass",
    ): "It is only a number in the log.",
    (
        "claimjobs/lease/reaper.py",
        "self._connector.write(kill, patience=0)",
        "self._connector.write(kill, patience=1)",
    ): "A session that could not be ended at once is asked again for a second; the owner's id fences anyway.",
    (
        "claimjobs/statements/settle.py",
        "held = sa.select(*roles.key).where(reach.filter).order_by(*roles.key)",
        "held = sa.select(*roles.key).where(reach.filter)",
    ): "Two that lock the same rows in the same order do not deadlock; those that do are tried again.",
    (
        "claimjobs/statements/idle.py",
        "first = sa.select(sa.literal(1)).select_from(source.table).where(selection.ready).order_by(*selection.order)",
        "first = sa.select(sa.literal(2)).select_from(source.table).where(selection.ready).order_by(*selection.order)",
    ): "What it is does not matter, as long as it is not NULL.",
    (
        "dialects/mysql/key_locks.py",
        'return sa.func.json_table(names, shape).table_valued(sa.column("name", sa.String(64)), name="wanted").c.name',
        'return sa.func.json_table(names, shape).table_valued(sa.column("name", sa.String(65)), name="wanted").c.name',
    ): "No name of a lock is longer than 64, and the server is not told of this figure.",
    (
        "dialects/sessions.py",
        "return not line.poll(0)",
        "return not line.poll(1)",
    ): "A millisecond.",
    (
        "dialects/postgres/errors.py",
        """return _says(error, *words) or (_says(error, 'role "') and _says(error, "does not exist"))""",
        """return _says(error, *words) or ((_says(error, 'role "')))""",
    ): "The server names a role, when a connection is made, only where it refuses that role.",
}
"""Each is equivalent, for the reason that is given: nobody who uses the package could see it. It is not tried."""
