"""S1. depesz 2013, "Pick a task to work on": four processors of one queue."""
