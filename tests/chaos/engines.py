"""Engines of the arena's own: its URL may name several hosts, of which the one that takes writes is meant."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import dialect_named_by


def engine_to(url: str, **options: Any) -> sa.Engine:
    """As `sqlalchemy.create_engine`."""
    engine = sa.create_engine(url, **options)
    dialect_named_by(engine).sessions.prepare(engine)
    return engine
