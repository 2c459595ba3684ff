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
        "self._connector.write(self._backend.dialect.sessions.end_session(session), patience=0)",
        "self._connector.write(self._backend.dialect.sessions.end_session(session), patience=1)",
    ): "A session that could not be ended at once is asked again for a second; the owner's id fences anyway.",
    (
        "claimjobs/statements/settle.py",
        "held = sa.select(*roles.key).where(target.filter).order_by(*roles.key)",
        "held = sa.select(*roles.key).where(target.filter)",
    ): "Two that lock the same rows in the same order do not deadlock; those that do are tried again.",
    (
        "claimjobs/statements/owners.py",
        "first = sa.select(sa.literal(1)).select_from(source.table).where(selection.candidate)",
        "first = sa.select(sa.literal(2)).select_from(source.table).where(selection.candidate)",
    ): "What it is does not matter, as long as it is not NULL.",
    (
        "dialects/sessions.py",
        "return not line.poll(0)",
        "return not line.poll(1)",
    ): "A millisecond.",
    (
        "claimjobs/claim/candidate_range.py",
        "widest = WIDEST if result.end is not None else math.inf",
        "widest = WIDEST if (result.end is None) else math.inf",
    ): "How many rows a search behind locked ones reads at most: a matter of cost.",
    (
        "claimjobs/claim/candidate_range.py",
        "self._behind = ClaimRequest(request.size, wider, result.end or request.after)",
        "self._behind = ClaimRequest(request.size, wider, (request.after))",
    ): "A wider search begins where the last one did, and reads its locked rows once more: a matter of cost.",
    (
        "claimjobs/claim/candidate_range.py",
        "return False",
        "return None",
    ): "It is only asked whether it is true.",
    (
        "claimjobs/claim/candidate_range.py",
        "if claimed.jobs and claimed.suspects:",
        "if (claimed.suspects):",
    ): "Without jobs there are no suspects among them.",
    (
        "claimjobs/enqueue/notifier.py",
        "rows = 0 if transaction is None else self._waiting.pop(transaction, 0)",
        "rows = 1 if transaction is None else self._waiting.pop(transaction, 0)",
    ): "SQLAlchemy tells of no commit without a transaction.",
    (
        "claimjobs/settle/settler.py",
        "if key in outcomes.done and key in outcomes.jobs:",
        "if (key in outcomes.done):",
    ): "Of each done job of a batch it is known how it was claimed.",
    (
        "claimjobs/database/kept_connection.py",
        "connection.info[IN_UTC] = not self._depends_on_zone or connection.scalar(sessions.zone) in UTC_NAMES",
        "connection.info[IN_UTC] = (not self._depends_on_zone)",
    ): "A session that is in UTC is set to UTC once more, for each transaction: a matter of cost.",
}
"""Each is equivalent, for the reason that is given: nobody who uses the package could see it. It is not tried."""
