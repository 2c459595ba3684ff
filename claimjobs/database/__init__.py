"""Connections, the transaction that is tried again, and the database's errors in our words."""
