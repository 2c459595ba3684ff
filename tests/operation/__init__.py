"""A run that is operated for as long as you say: deployed, scraped, paused, upgraded, stopped, explained."""
