"""S2. digoal 2017, "high-concurrency task allocation": pairs of a worker and a task, each in one pair only."""
