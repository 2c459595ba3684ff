"""All faults, in the order of the table."""

from __future__ import annotations

from typing import Final

from tests.chaos.faults import network, processes, server
from tests.chaos.faults.fault import Fault, NotHere
from tests.chaos.fleet import Formation, Settings

SHORT: Final = Settings(lease=2.0)
"""Where a fault must outlast the lease."""
ALL_SORTS: Final = Formation(supervised=2, bare=1, witnesses=1)
BEHIND: Final = ALL_SORTS.but(lease=2.0, road="proxy")

FAULTS: Final = (
    Fault("SIGKILL of a consumer", processes.kill_supervised, Formation(supervised=4), times=12, limit=5, median=1.5),
    Fault("SIGKILL of a consumer without a supervisor", processes.kill_bare, Formation(bare=2), 12, 5, median=1.5),
    Fault("SIGKILL of the supervisor", processes.kill_supervisor, Formation(supervised=2), times=3, limit=5),
    Fault("SIGKILL of a whole process group", processes.kill_group, Formation(supervised=2), 12, 5, median=3.0),
    Fault("SIGSTOP longer than the lease, SIGCONT", processes.freeze, ALL_SORTS.but(lease=2.0), times=4, limit=5),
    Fault("kill -9 of the server, and restart", server.restart, ALL_SORTS, times=3, limit=5),
    Fault("the same, away longer than the lease", server.restart_late, ALL_SORTS.but(lease=2.0), times=2, limit=5),
    Fault("all sessions ended by an administrator", server.end_sessions, ALL_SORTS, times=5, limit=5),
    Fault("TCP: connections reset", network.cut, BEHIND, times=5, limit=5, place=network.behind_a_proxy),
    Fault("TCP: nothing passes for seconds", network.stall, BEHIND, times=4, limit=5, place=network.behind_a_proxy),
    Fault("TCP: a black hole", network.swallow, BEHIND, times=3, limit=5, place=network.behind_a_proxy),
    Fault(
        "network of a machine away longer than the lease",
        network.take_down,
        ALL_SORTS.but(lease=2.0, road="namespace"),
        times=2,
        limit=5,
        place=network.in_a_namespace,
    ),
    Fault("row locks in a stranger's long transaction", server.hold_row_locks, ALL_SORTS.but(lease=2.0), 3, 5),
    Fault("out of connections", server.exhaust_connections, ALL_SORTS.but(lease=2.0), times=2, limit=5),
)

__all__ = ["FAULTS", "Fault", "NotHere"]
