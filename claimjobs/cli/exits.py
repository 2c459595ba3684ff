"""The exit codes of the commands."""

from __future__ import annotations

from typing import Final

OK: Final = 0
"""The work is done, or the first Ctrl-C or SIGTERM ended it and no job is held: batches were finished, or released at
the deadline of `--stop-timeout`. A service manager that asked for the stop must not report a failure."""
FAILURE: Final = 1
"""Something failed that has no code of its own."""
USAGE: Final = 2
"""The command line is wrong (click's own code), or what it says cannot be a key of the table."""
CONNECTION: Final = 3
"""The database or a pooler cannot be reached, refuses the user, or cannot do what is needed."""
TABLE: Final = 4
"""A table is missing, or is not fit for what was asked."""
INPUT: Final = 5
"""A row, a predicate, a map or a handler that was given does not fit, or no dead job has an id that was given."""
GAVE_UP: Final = 6
"""`start-processing` ended before its work was done: every try ended by the same error."""
UNHEALTHY: Final = 7
"""`status --check` found a limit exceeded."""
WARNINGS: Final = 1
"""`explain`: something costs more than it must, or may fail later."""
WILL_NOT_WORK: Final = 2
"""`explain`: this queue cannot work as it is."""
OUTDATED: Final = 8
"""`upgrade-tables --check` found a table of an earlier version."""
INTERRUPTED: Final = 130
"""Ctrl-C ended a command before its work was done; no transaction is half done."""
CANCELLED: Final = 130
"""A second Ctrl-C or SIGTERM released the batches of consumers."""

MEANINGS: Final = {
    OK: "the work is done, or one Ctrl-C or SIGTERM ended it after its open batches, or at --stop-timeout",
    FAILURE: "something failed that has no code of its own (explain: there are warnings)",
    USAGE: "the command line is wrong, also an id that cannot be one (explain: or the queue will not work)",
    CONNECTION: "the database cannot be reached, refuses the user, or cannot do what is needed",
    TABLE: "a table is missing, or was dropped meanwhile, or is not fit for what was asked",
    INPUT: "a row, a predicate, a map or a handler that was given does not fit, or an id is no dead job",
    GAVE_UP: "start-processing gave up: consumers ended by the same error each time, or no job was done or failed",
    UNHEALTHY: "status --check: the queue exceeds a limit, which the output names",
    OUTDATED: "upgrade-tables --check: a table has an earlier schema, which the output names",
    INTERRUPTED: "Ctrl-C ended the command before its work was done (start-processing: a second one)",
}
"""For `claimjobs --help`."""
