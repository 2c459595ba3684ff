"""Faults under load, and the proof that nothing is lost and nothing settled twice. `python -m tests.chaos --help`."""
