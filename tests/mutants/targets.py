"""Which files are changed, and which tests must notice: the ones that are quick, and near to the file, first."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_CONFORMANCE = "tests/conformance"

LEFT_ALONE: Final = "not server_that_is and not packet_holds and not innocent"
"""Tests that stop or set a server, for those of a run serve all its mutants; and one that is long."""

TARGETS: Final[dict[str, tuple[str, str]]] = {
    "claim": (
        "claim/one_statement claim/record claim/candidates claim/candidate_range "
        "claim/locking table/acceptance batch/settle_and_claim lease/lease_hold "
        "queue/consumer queue/batch_loop queue/row_isolation claim/row_reader statements/find "
        "statements/claim",
        "unit/test_overfetch test_kinds test_claim test_contention test_turn test_cursor test_cut_claims "
        "test_transaction test_transaction_lost test_key_only test_pickup test_columns test_locks test_liveness "
        "test_declared_dead test_reclaim test_unreadable test_fit test_tables test_any_order test_locking "
        "test_row_isolation test_timeouts",
    ),
    "side-car": ("claim/locking", "test_kinds test_side_car test_side_car_rows test_contention test_any_order"),
    "contrib": (
        "contrib/advisory_locks contrib/replica",
        "unit/test_advisory_locks test_advisory_locks test_replica test_any_order",
    ),
    "enqueue": (
        "enqueue/enqueuer",
        "unit/test_bulk test_enqueue test_bulk test_bulk_bad_rows test_bulk_copies test_unique test_unique_conflicts",
    ),
    "settle": (
        "settle/settler settle/outcome_table batch/batch settle/refusals settle/still_due options statements/settle",
        "unit/test_batch unit/test_retry test_kinds test_settle test_retry test_suspects test_batch test_on_done "
        "test_transaction test_transaction_lost test_key_only test_dead test_bulk test_bulk_bad_rows test_bulk_copies "
        "test_owners test_turn test_side_car test_refusals test_refusal_codes "
        "test_refused_texts test_refused_retries test_strange_errors test_leave",
    ),
    "holds": (
        "lease/lease_hold lease/transaction_hold batch/open_transaction "
        "database/connection database/kept_connection database/fair_lock",
        "unit/test_fair_lock test_cut_claims test_transaction test_transaction_lost test_key_only test_owners "
        "test_turn test_outage test_connections test_lost_answers test_unavailable test_large_batches test_liveness "
        "test_declared_dead test_reclaim test_calls",
    ),
    "owners": (
        "lease/owner lease/owner_row lease/registry options statements/owners",
        "unit/test_watch test_owners test_outage test_two_tenants test_liveness test_declared_dead test_reclaim "
        "test_cut_claims test_sleep test_wake",
    ),
    "reclaim": (
        "lease/reaper workers/database_threads",
        "test_kinds test_owners test_outage test_two_tenants test_liveness test_declared_dead test_reclaim "
        "cli/test_reclaim test_dead",
    ),
    "wake": (
        "enqueue/notifier lease/sleeper queue/batch_loop statements/owners",
        "unit/test_idle unit/test_rounds test_calls test_sleep test_wake test_idle test_liveness test_declared_dead "
        "test_reclaim",
    ),
    "dialects": (
        "dialects/base dialects/sessions dialects/error_codes "
        "dialects/mysql/dialect dialects/mysql/errors dialects/mysql/sessions dialects/mysql/inspection "
        "dialects/postgres/dialect dialects/postgres/errors dialects/postgres/sessions dialects/postgres/inspection",
        "unit/test_connect test_claim test_settle test_two_tenants test_calls test_columns "
        "test_locks test_transaction test_transaction_lost test_key_only test_connections test_lost_answers "
        "test_unavailable test_large_batches test_timeouts test_wire test_unreadable test_assignments test_errors "
        "test_unique",
    ),
}
"""For each part of the protocol: modules of the package, then files of tests (of tests/conformance, where no folder is
named)."""


def files() -> dict[str, list[str]]:
    """Every file that is changed, by its path in the repository, and the tests that must notice."""
    return {file: list(map(_test, TARGETS[part][1].split())) for part in TARGETS for file in files_of(part)}


def files_of(part: str) -> list[str]:
    """The files of a part of the protocol."""
    return list(map(_file, TARGETS[part][0].split()))


def _file(module: str) -> str:
    return f"{module}.py" if module.startswith("dialects/") else f"claimjobs/{module}.py"


def _test(name: str) -> str:
    return f"tests/{name}.py" if "/" in name else f"{_CONFORMANCE}/{name}.py"
