"""Connections, transactions that run again after a passing error, and the translation of the database's errors."""
