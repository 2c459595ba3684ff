"""A file a system. It is imported in that system's own environment, never in the project's.

Each has `fill(order)`, which makes the system's tables and enqueues the jobs in bulk by the system's own best way,
and `work(order, line)`, which is one worker: it gets ready, calls `line.ready()`, which returns at the start, works
whose handlers call `did`, and returns soon after `line.stop` is set. The docstring says in which settings
the system runs, and why those are its best documented ones; it becomes a part of docs/benchmarks-peers.md.
"""
