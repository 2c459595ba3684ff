"""The exit codes of the commands. `MEANINGS` says what each one means."""

from __future__ import annotations

from typing import Final

OK: Final = 0
"""Also after the first Ctrl-C or SIGTERM: a service manager that asked for the stop must not report a failure."""
FAILURE = WARNINGS = 1
USAGE = WILL_NOT_WORK = 2
"""click's own code."""
CONNECTION, TABLE, INPUT, GAVE_UP, UNHEALTHY, OUTDATED = range(3, 9)
INTERRUPTED: Final = 130
"""No transaction is half done, and no job is held."""

MEANINGS: Final = {
    OK: "the work is done, or one Ctrl-C or SIGTERM ended it after its open batches, or at --stop-timeout",
    FAILURE: "something failed that has no code of its own (explain: there are warnings)",
    USAGE: "the command line is wrong, also an id that cannot be one (explain: or the queue will not work)",
    CONNECTION: "the database cannot be reached, refuses the user, or cannot do what is needed",
    TABLE: "a table is missing, or was dropped meanwhile, or is not fit for what was asked",
    INPUT: "a row, a predicate, a map or a handler that was given does not fit, or an id is of no such job",
    GAVE_UP: "start-processing gave up: consumers ended by the same error each time, or no job was done or failed",
    UNHEALTHY: "status --check: the queue exceeds a limit, which the output names",
    OUTDATED: "upgrade-tables --check: a table has an earlier schema, which the output names",
    INTERRUPTED: "Ctrl-C ended the command before its work was done (start-processing: a second one)",
}
"""For `claimjobs --help` and docs/commands.md."""
