"""Explain: what a queue's statements do on this database, and what its settings mean for them."""
