"""Who holds what, and for how long: owners, their heartbeat, the reaper, and how an idle owner is woken."""
