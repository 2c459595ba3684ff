"""How to get, initialise and run each server's own program: a file each."""
