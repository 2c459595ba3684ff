"""What is explained of a Queue, and what keeps a queue from working at all."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from claimjobs.errors import AccessDenied, BadPredicate, SettingUnfit, UnfitTable
from claimjobs.explain import capabilities
from claimjobs.explain.explainer import Explainer
from claimjobs.explain.subject import Subject
from claimjobs.findings import Explanation, Finding
from claimjobs.queue.consumer import Consumer
from claimjobs.settings import Settings

FATAL: Final = (UnfitTable, BadPredicate, SettingUnfit, AccessDenied)
CHECKS: Final = ("table", "predicate", "settings", "rights")
"""Errors that end every claim, and what each is about."""


def explain(consumer: Consumer, settings: Settings, *, analyze: bool, seconds: float | None) -> Explanation:
    """Explain a queue; if it cannot work, the only finding says why. Raises ConnectionFailed."""
    try:
        consumer.access.backend  # noqa: B018 - a server that cannot be reached raises here
    except UnfitTable as error:
        return Explanation(_name(settings), (_fatal(error),))
    try:
        subject = _subject(consumer, settings)
    except FATAL as error:
        return Explanation(consumer.access.backend.source.name, (_fatal(error),))
    return Explainer(consumer.access.engine, subject, seconds=seconds).run(analyze=analyze)


def require_capabilities(consumer: Consumer, settings: Settings) -> None:
    """Have the server plan each statement of this queue. Raises ServerUnfit."""
    capabilities.require_capabilities(consumer.access.engine, _subject(consumer, settings))


def _subject(consumer: Consumer, settings: Settings) -> Subject:
    backend = consumer.access.must_claim()
    consumer.check_selection()
    return Subject(backend, consumer.plans.plan(None), consumer.settler(), settings.liveness, settings.now)


def _fatal(error: Exception) -> Finding:
    check = next(check for kind, check in zip(FATAL, CHECKS, strict=True) if isinstance(error, kind))
    return Finding(check, "will not work", str(error))


def _name(settings: Settings) -> str:
    table = settings.table
    return table if isinstance(table, str) else str(sa.inspect(table, raiseerr=False) or table)
