"""Claims per batch, as the audit and the arena read them: what triggers write of `claimjobs_batches`, and its SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tests.chaos.triggers import MYSQL_NOW, POSTGRES_NOW


class Move(NamedTuple):
    """A change of a job's status or owner. It has the columns of `chaos_moves`."""

    job: int
    old_owner: int | None
    new_owner: int | None
    old_status: str | None
    new_status: str | None
    session: int
    at: float
    undoable: int | None = None
    """The transaction, where a later statement of it may take a job out of the batch again before anybody sees it."""


# --- what the arena reads ------------------------------------------------------------------------------------

OWNERS: Final = (
    "SELECT o.pid, coalesce(sum(b.jobs), 0) FROM claimjobs_owners o "
    "LEFT JOIN claimjobs_batches b ON b.owner_id = o.id WHERE o.died IS NULL GROUP BY o.pid"
)
"""The processes that are registered, and how many jobs each holds."""

_LISTED_POSTGRES: Final = "jsonb_array_elements_text({}.keys) AS listed (job)"
_LISTED_MYSQL: Final = "JSON_TABLE({}.`keys`, '$[*]' COLUMNS (job INT PATH '$')) AS listed"


def claimed(*, postgres: bool) -> str:
    """The predicate of a job that is in a claim row."""
    listed = (_LISTED_POSTGRES if postgres else _LISTED_MYSQL).format("b")
    job = "listed.job::int" if postgres else "listed.job"
    return f"jobs.id IN (SELECT {job} FROM claimjobs_batches b CROSS JOIN {listed})"


# --- what the audit writes down ------------------------------------------------------------------------------


def triggers(*, postgres: bool) -> tuple[str, ...]:
    """The statements that make them. A batch that is made claims its jobs; what leaves it is not claimed any more."""
    return _postgres() if postgres else _mysql()


def _postgres() -> tuple[str, ...]:
    came, left = (_LISTED_POSTGRES.format(version) for version in ("NEW", "OLD"))
    return (
        f"""CREATE FUNCTION chaos_batch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF TG_OP = 'INSERT' THEN
        INSERT INTO chaos_moves (job, new_owner, old_status, new_status, session, at, undoable)
          SELECT job::int, NEW.owner_id, 'unclaimed', 'claimed', chaos_session(), {POSTGRES_NOW}, txid_current()
          FROM {came};
      ELSE
        INSERT INTO chaos_moves (job, old_owner, old_status, new_status, session, at, undoable)
          SELECT job::int, OLD.owner_id, 'claimed', 'unclaimed', chaos_session(), {POSTGRES_NOW}, txid_current()
          FROM {left} WHERE TG_OP = 'DELETE' OR job NOT IN (SELECT job FROM {came});
      END IF;
      RETURN NULL;
    END $$""",
        """CREATE TRIGGER chaos_batches AFTER INSERT OR UPDATE OR DELETE ON claimjobs_batches
       FOR EACH ROW EXECUTE FUNCTION chaos_batch()""",
    )


def _mysql() -> tuple[str, ...]:
    came, left = (_LISTED_MYSQL.format(version) for version in ("NEW", "OLD"))
    leave = f"""INSERT INTO chaos_moves (job, old_owner, old_status, new_status, session, at)
        SELECT listed.job, OLD.owner_id, 'claimed', 'unclaimed', connection_id(), {MYSQL_NOW} FROM {left}"""
    return (
        f"""CREATE TRIGGER chaos_batch_made AFTER INSERT ON claimjobs_batches FOR EACH ROW
      INSERT INTO chaos_moves (job, new_owner, old_status, new_status, session, at)
        SELECT listed.job, NEW.owner_id, 'unclaimed', 'claimed', connection_id(), {MYSQL_NOW} FROM {came}""",
        f"CREATE TRIGGER chaos_batch_closed AFTER DELETE ON claimjobs_batches FOR EACH ROW {leave}",
        f"""CREATE TRIGGER chaos_batch_shortened AFTER UPDATE ON claimjobs_batches FOR EACH ROW {leave}
        WHERE listed.job NOT IN (SELECT kept.job FROM {came.replace("listed", "kept")})""",
    )


def as_in_rows(moves: Iterable[Move]) -> list[Move]:
    """Join the two parts of a settle: the job leaves its batch, then the session that took it out writes its row.

    A claim that was undone in the same transaction is left out.
    """
    joined: list[Move] = []
    left: dict[int, int] = {}
    for move in _without_undone(list(moves)):
        before = left.pop(move.job, None)
        if before is not None and _is_rest(joined[before], move):
            joined[before] = move._replace(old_owner=joined[before].old_owner, old_status="claimed")
            continue
        if (move.old_status, move.new_status) == ("claimed", "unclaimed"):
            left[move.job] = len(joined)
        joined.append(move)
    return joined


def _without_undone(moves: list[Move]) -> list[Move]:
    claims: dict[tuple[int, int], int] = {}
    undone: set[int] = set()
    for place, move in enumerate(moves):
        if move.undoable is None:
            continue
        if move.new_status == "claimed":
            claims[move.job, move.undoable] = place
        elif (made := claims.pop((move.job, move.undoable), None)) is not None:
            undone |= {made, place}
    return [move for place, move in enumerate(moves) if place not in undone]


def _is_rest(left: Move, move: Move) -> bool:
    return move.session == left.session and move.old_status == "unclaimed" and move.new_status != "claimed"
