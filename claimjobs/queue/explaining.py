"""What is explained of a Queue, and what keeps a queue from working at all."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from claimjobs.errors import AccessDenied, BadPredicate, SettingUnfit, UnfitTable
from claimjobs.explain import capabilities
from claimjobs.explain.explainer import Explainer
from claimjobs.explain.subject import Subject
from claimjobs.findings import Explanation, Finding
from claimjobs.queue.parts import QueueParts
from claimjobs.settings import Settings

FATAL: Final = (UnfitTable, BadPredicate, SettingUnfit, AccessDenied)
CHECKS: Final = ("table", "predicate", "settings", "rights")
"""Errors that end every claim, and what each is about."""


def explain(
    engine: sa.Engine, parts: QueueParts, settings: Settings, *, analyze: bool, seconds: float | None
) -> Explanation:
    """Explain a queue; if it cannot work, the only finding says why. Raises ConnectionFailed."""
    try:
        parts.backend  # noqa: B018 - a server that cannot be reached raises here
    except UnfitTable as error:
        return Explanation(_name(settings), (_fatal(error),))
    try:
        subject = _subject(parts, settings)
    except FATAL as error:
        return Explanation(parts.backend.source.name, (_fatal(error),))
    return Explainer(engine, subject, seconds=seconds).run(analyze=analyze)


def require_capabilities(engine: sa.Engine, parts: QueueParts, settings: Settings) -> None:
    """Have the server plan each statement of this queue. Raises ServerUnfit."""
    capabilities.require_capabilities(engine, _subject(parts, settings))


def _subject(parts: QueueParts, settings: Settings) -> Subject:
    backend = parts.must_claim()
    parts.check_selection()
    return Subject(backend, parts.plan(None), parts.settler(), settings.liveness, settings.now)


def _fatal(error: Exception) -> Finding:
    check = next(check for kind, check in zip(FATAL, CHECKS, strict=True) if isinstance(error, kind))
    return Finding(check, "will not work", str(error))


def _name(settings: Settings) -> str:
    table = settings.table
    return table if isinstance(table, str) else str(sa.inspect(table, raiseerr=False) or table)
