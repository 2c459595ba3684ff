"""Options that a command or a Queue had once, and what to use instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_GRANTS: Final = "run the GRANT statements of docs/security.md"

INSTEAD: Final[dict[str, str]] = {
    "--account": _GRANTS,
    "--grants": _GRANTS,
    "--column": "write the name of the column into [columns] of a --map file",
    "--partition-by-time": "make the partitions yourself, as docs/operating.md shows under 'Kept jobs'",
    "--state": "write the value of the state into [states] of a --map file",
    "--rejects": "a line that does not fit is told with its number, and all others are enqueued",
    "--chunk": "a file is one transaction; make smaller files, as with `split -l 100000`",
    "--from-line": "give the lines from there on, as with `tail -n +1000 FILE | claimjobs enqueue -`",
    "--ledger": "make and purge the ledger in Python, by claimjobs.contrib.ledger",
    "--attempts": "give --retry-attempts, or [retry] of a --map file",
    "--picture": "record the terminal, as with asciinema",
    "--prefetch": "handle many jobs at once by --concurrency N, with a function of a job",
    "--lock": "choose advisory locks in Python: Queue(hold='transaction', locking=AdvisoryLocks())",
    "--candidates-url": "read candidates from a replica in Python: Queue(locking=Replica(url))",
    "candidates": "use locking=Replica(url) of claimjobs.contrib.replica",
    "lock": "use locking=AdvisoryLocks() of claimjobs.contrib.advisory_locks, with hold='transaction'",
}


def refuse_parameters(names: Iterable[str]) -> None:
    """Raise TypeError for a parameter that Queue does not have, and say what to use instead if it had it once."""
    for name in names:
        instead = f": {INSTEAD[name]}" if name in INSTEAD else ""
        raise TypeError(f"Queue has no parameter {name!r}{instead}")
