"""Who may sign certificates, by the word of this machine: a long list, of which tests need nothing.

A driver that offers TLS reads all of it for each connection, which took half of the time that a test computes. No
server here has a certificate that anybody on it has signed, and none is asked for one.
"""

from __future__ import annotations

import os

FOUND = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}


def forget() -> None:
    """Let this process and those that it starts know nobody."""
    os.environ.update(dict.fromkeys(FOUND, os.devnull))


def remembered() -> dict[str, str]:
    """The environment for a program that is to reach a server out in the world."""
    kept = {name: value for name, value in os.environ.items() if name not in FOUND}
    return kept | {name: value for name, value in FOUND.items() if value is not None}
