"""Settings: what the suite says in environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from claimjobs.options import ClaimsKind


@dataclass(frozen=True)
class Settings:
    """One run of the adapter."""

    database_url: str
    instance: int
    """The number of this process, if the suite runs several side by side."""
    workers: int
    """Consumers: a thread and a Queue each."""
    claim_size: int
    """How many jobs a consumer claims at once."""
    claims: ClaimsKind
    """What a claim writes; a Queue refuses what it does not know."""
    work_seconds: float
    """How long a handler takes for one job."""
    payload_bytes: int
    sample_seconds: int
    """How often samples are written."""

    producer_mode: str
    """`fixed`: so many jobs a second; `depth-target`: so many jobs are kept in the queue."""
    pacing: str
    """Who paces a fixed rate: the suite (`harness`), by lines on stdin, or the `adapter`."""
    rate: float
    rate_file: Path | None
    """A file with the rate of the moment, which the suite changes during a run."""
    insert_size: int
    """How many jobs are inserted at once, at most."""
    insert_seconds: float
    """The pause between two inserts."""
    target_depth: int


def read(variables: Mapping[str, str]) -> Settings:
    """The settings that the variables give; those of the suite's guide where a variable is not set."""
    rate_file = variables.get("PRODUCER_RATE_CONTROL_FILE")
    return Settings(
        database_url=variables["DATABASE_URL"],
        instance=int(variables.get("BENCH_INSTANCE_ID", "0")),
        workers=int(variables.get("WORKER_COUNT", "32")),
        claim_size=int(variables.get("CONSUMER_BATCH_SIZE", "10")),
        claims=cast("ClaimsKind", variables.get("CLAIMJOBS_CLAIMS", "rows")),
        work_seconds=float(variables.get("JOB_WORK_MS", "1")) / 1000,
        payload_bytes=int(variables.get("JOB_PAYLOAD_BYTES", "256")),
        sample_seconds=int(variables.get("SAMPLE_EVERY_S", "5")),
        producer_mode=variables.get("PRODUCER_MODE", "fixed"),
        pacing=variables.get("PRODUCER_PACING", "adapter"),
        rate=float(variables.get("PRODUCER_RATE", "800")),
        rate_file=Path(rate_file) if rate_file else None,
        insert_size=int(variables.get("PRODUCER_BATCH_MAX", "128")),
        insert_seconds=float(variables.get("PRODUCER_BATCH_MS", "25")) / 1000,
        target_depth=int(variables.get("TARGET_DEPTH", "1000")),
    )
