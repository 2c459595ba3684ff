"""Settle: write the outcomes of a batch."""
