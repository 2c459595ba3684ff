class Unavailable(RuntimeError):
    """A server cannot be had; the message says why and what to do next."""
