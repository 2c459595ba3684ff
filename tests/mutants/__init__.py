"""`make mutants`: lines of the protocol are changed, one at a time, and the tests must notice."""
