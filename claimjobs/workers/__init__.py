"""Consumer processes and the supervisor that starts, watches and replaces them."""
