"""Why some mutants survive: by file, the lines that are changed, and what they are changed into."""

from __future__ import annotations

from typing import Final

EXPLAINED: Final[dict[tuple[str, str, str], str]] = {
    (
        "claimjobs/claim/candidates.py",
        "if roles.key_index is not None and len({job.key for job in jobs}) < len(jobs):",
        "if (len({job.key for job in jobs}) < len(jobs)):",
    ): "A primary key names no two rows: looking for them there costs time, and finds none.",
    (
        "claimjobs/lease/owner_row.py",
        "if not self.id or not self._is_alive(connection):",
        "if (not self._is_alive(connection)):",
    ): "No row has the id 0, so that its beat reaches none: one statement more, once.",
    (
        "claimjobs/lease/sleeper.py",
        "for_work = due - time.monotonic() <= longest / 2",
        "for_work = due - time.monotonic() <= longest / 3",
    ): "How much too early a sleeping owner may check for work, so that two checks become one: a matter of cost.",
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
        "held = sa.select(*roles.key).where(target.filter).order_by(*roles.key)",
        "held = sa.select(*roles.key).where(target.filter)",
    ): "Two that lock the same rows in the same order do not deadlock; those that do are tried again.",
    (
        "claimjobs/statements/idle.py",
        "first = sa.select(sa.literal(1)).select_from(source.table).where(selection.found).order_by(*selection.order)",
        "first = sa.select(sa.literal(2)).select_from(source.table).where(selection.found).order_by(*selection.order)",
    ): "What it is does not matter, as long as it is not NULL.",
    (
        "dialects/sessions.py",
        "return not line.poll(0)",
        "return not line.poll(1)",
    ): "A millisecond.",
}
"""Each is equivalent, for the reason that is given: nobody who uses the package could see it. It is not tried."""
