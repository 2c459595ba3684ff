"""Adapters by which claimjobs takes part in the benchmarks of others."""
