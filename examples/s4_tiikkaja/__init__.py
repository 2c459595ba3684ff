"""S4. Marko Tiikkaja 2010, "Queues in SQL": what goes wrong between two sessions, one step at a time."""
