"""Which owner holds what, and for how long: owners, heartbeat, reaper, and how an idle owner is woken."""
