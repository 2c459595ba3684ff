"""Fixtures for what the conformance tests share."""

from __future__ import annotations

import pytest

from tests.conformance.sleepers import NEVER


@pytest.fixture
def only_when_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleeper does not look for work by itself either, not even when it has just lain down; nor between two sleeps,
    however short they were."""
    monkeypatch.setattr("claimjobs.queue.batch_loop.FIRST_CHECK", NEVER)
    monkeypatch.setattr("claimjobs.queue.idle_backoff.SHORT", 0.0)
