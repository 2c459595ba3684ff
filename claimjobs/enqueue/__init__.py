"""Rows into the table, and the notifier that wakes idle owners."""
