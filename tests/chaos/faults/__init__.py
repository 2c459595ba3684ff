"""All faults, in the order of the table."""

from __future__ import annotations

from typing import Final

from tests.chaos.faults import disk, network, operator, processes, server, work
from tests.chaos.faults.fault import Fault, NotHere
from tests.chaos.fleet import Formation
from tests.chaos.work import HOLDS, KILLS, RAISES

ALL_SORTS: Final = Formation(supervised=2, bare=1, witnesses=1)
TWENTY: Final = Formation(supervised=3)
BEHIND: Final = ALL_SORTS.but(lease=2.0, road="proxy")

FAULTS: Final = (
    Fault("SIGKILL of a consumer", processes.kill_supervised, Formation(supervised=4), times=13, limit=5, median=1.5),
    Fault("SIGKILL of a consumer without a supervisor", processes.kill_bare, Formation(bare=2), 13, 5, median=1.5),
    Fault("SIGKILL of the supervisor", processes.kill_supervisor, Formation(supervised=2), times=3, limit=5),
    Fault("SIGKILL of a whole process group", processes.kill_group, Formation(supervised=2), 11, 5, median=3.0),
    Fault("SIGSTOP longer than the lease, SIGCONT", processes.freeze, ALL_SORTS.but(lease=2.0), times=4, limit=5),
    Fault("kill -9 of the server, and restart", server.restart, ALL_SORTS, times=3, limit=5),
    Fault("the same, away longer than the lease", server.restart_late, ALL_SORTS.but(lease=2.0), times=2, limit=5),
    Fault(
        "the same, away longer than a batch may take",
        server.restart_after_max_batch_time,
        ALL_SORTS.but(max_batch_time=1.0),
        times=2,
        limit=5,
        needs="restarts",
    ),
    Fault("all sessions ended by an administrator", server.end_sessions, ALL_SORTS, times=5, limit=5),
    Fault("TCP: connections reset", network.cut, BEHIND, times=5, limit=5, place=network.behind_a_proxy),
    Fault("TCP: nothing passes for seconds", network.stall, BEHIND, times=4, limit=5, place=network.behind_a_proxy),
    Fault("TCP: a black hole", network.swallow, BEHIND, 3, 5, needs="silence", place=network.behind_a_proxy),
    Fault(
        "network of a machine away longer than the lease",
        network.take_down,
        ALL_SORTS.but(lease=2.0, road="namespace"),
        times=2,
        limit=5,
        needs="silence",
        place=network.in_a_namespace,
    ),
    # A settle waits a second for a row lock, on InnoDB up to two, because that checks once a second which waits are
    # over. No heartbeat is written meanwhile, so a lease of 2 s is over when the machine is busy.
    Fault("row locks in a stranger's long transaction", server.hold_row_locks, ALL_SORTS.but(lease=4.0), 3, 5),
    Fault("more row locks at the head than a search reads", server.hold_the_head, ALL_SORTS, times=2, limit=5),
    Fault("clocks of clients off by hours", work.kill_one_of_another_time, ALL_SORTS.but(clock=5.0), times=4, limit=5),
    Fault("out of connections", server.exhaust_connections, ALL_SORTS.but(lease=2.0), times=2, limit=5),
    # A MySQL whose binary log met the end of the disk looks once a minute whether there is space again.
    Fault(
        "disk of the server full", disk.fill, ALL_SORTS.but(lease=2.0), times=1, limit=65, place=disk.on_a_small_disk
    ),
    Fault(
        "poison: a job whose handler raises",
        work.plant_raising,
        ALL_SORTS.but(attempts=3),
        times=4,
        limit=10,
        poison=frozenset({RAISES}),
        hands=work.hands(10),
    ),
    Fault(
        "poison: a job that kills its process",
        work.plant_killing,
        Formation(supervised=3, witnesses=0).but(attempts=3),
        times=2,
        limit=20,
        poison=frozenset({KILLS}),
        hands=work.hands(10),
        needs="deaths",
    ),
    Fault(
        "poison: a job that kills its process, among twenty threads",
        work.plant_killing,
        Formation(supervised=3, witnesses=0).but(attempts=3, concurrency=20),
        times=2,
        limit=30,
        poison=frozenset({KILLS}),
        hands=work.hands(50),
        needs="many at once",
    ),
    Fault(
        "poison: a job that kills its process, among twenty tasks",
        work.plant_killing,
        Formation(supervised=3, witnesses=0).but(attempts=3, concurrency=20, tasks=True),
        times=2,
        limit=30,
        poison=frozenset({KILLS}),
        hands=work.hands(50),
        needs="many at once",
    ),
    Fault(
        "SIGKILL of a consumer of twenty threads",
        processes.kill_supervised,
        TWENTY.but(concurrency=20),
        times=5,
        limit=5,
        needs="many at once",
    ),
    Fault(
        "kill -9 of the server, twenty tasks",
        server.restart,
        TWENTY.but(concurrency=20, tasks=True),
        times=3,
        limit=5,
        needs="many at once",
    ),
    Fault(
        "poison: a job that holds the interpreter",
        work.plant_holding,
        Formation(supervised=3, witnesses=0).but(lease=2.0, max_batch_time=1.0, attempts=2),
        times=1,
        limit=60,
        poison=frozenset({HOLDS}),
        hands=work.hands(10),
        needs="deaths",
    ),
    Fault("operator: stopped at a deadline", operator.stop_at_deadline, ALL_SORTS.but(stop_timeout=0.01), 8, limit=5),
    Fault("operator: deployed anew", operator.deploy, ALL_SORTS, times=3, limit=5),
    Fault("operator: paused and resumed", operator.pause_and_resume, ALL_SORTS, times=4, limit=5),
    Fault("a handler that hangs", work.hang, ALL_SORTS.but(lease=2.0, max_batch_time=1.0), 3, 5, needs="hangs"),
    Fault(
        "a handler that hangs beside other threads of its Queue",
        work.hang,
        Formation(bare=1).but(lease=2.0, max_batch_time=1.0, threads=3),
        times=3,
        limit=5,
        needs="hangs",
    ),
)

__all__ = ["FAULTS", "Fault", "NotHere"]
