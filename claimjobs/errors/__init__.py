"""Every error of claimjobs. A message says what happened, to which thing, and what to do next."""

# ruff: noqa: F403 - each of these modules holds errors, and all of them are named here
from claimjobs.errors.base import *
from claimjobs.errors.connecting import *
from claimjobs.errors.jobs import *
from claimjobs.errors.tables import *
