"""Prometheus metrics of a queue: `QueueCollector` for programs of your own. It needs the extra `metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from claimjobs.errors import ExtraMissing

if TYPE_CHECKING:
    from claimjobs.metrics.collectors import QueueCollector

__all__ = ["QueueCollector"]


def __getattr__(name: str) -> Any:
    """QueueCollector, imported when it is used: health needs no prometheus_client. Raises ExtraMissing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_prometheus_client()
    from claimjobs.metrics.collectors import QueueCollector  # noqa: PLC0415

    return QueueCollector


def require_prometheus_client() -> None:
    """Raise ExtraMissing if prometheus_client is not installed."""
    try:
        import prometheus_client  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise ExtraMissing("prometheus_client is not installed: run `pip install 'claimjobs[metrics]'`") from error
