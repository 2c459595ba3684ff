"""Prometheus metrics of a queue: `collectors`, which need the extra `metrics`; and its page for a browser."""
