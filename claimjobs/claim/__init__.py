"""Find candidates, lock them, check them again, mark them as owned: one strategy a file."""
