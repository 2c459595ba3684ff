"""The command line: parse, call, print. No SQL, no loops over jobs."""

from claimjobs.cli.main import main

__all__ = ["main"]
