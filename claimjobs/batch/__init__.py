"""A claim in hand: outcomes of jobs, the settle that writes them, and the transaction that may hold them."""
