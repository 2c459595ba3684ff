"""Benchmarks: what claimjobs does beside others, on the same server. A development tool, not part of the wheel."""
