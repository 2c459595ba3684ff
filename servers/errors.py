class Unavailable(RuntimeError):  # noqa: N818 - reads as `servers.Unavailable`
    """A server cannot be had; the message says why and what to do next."""
