"""For tests of one's own handlers: work off what is due in the test's own process, and see what became of each job.

pytest finds the fixture `claimjobs_database` by itself: see `claimjobs.pytest_plugin`.
"""

from claimjobs.testing.runs import Clock, JobResult, JobState, run

__all__ = ["Clock", "JobResult", "JobState", "run"]
