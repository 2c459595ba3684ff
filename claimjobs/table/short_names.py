"""Short names: a name of an index or a type that is made of a long table's name."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

LONGEST: Final = 63
"""Bytes that every database allows for a name."""
_DIGEST: Final = 4
"""Bytes of a hash."""


def fitting(name: str) -> str:
    """A name for an index or a type: this one, or if it is too long, its beginning and a hash.

    Such names must differ, on some databases also those of two tables.
    """
    if len(name.encode()) <= LONGEST:
        return name
    kept = name.encode()[: LONGEST - len("_") - 2 * _DIGEST].decode(errors="ignore")
    return f"{kept}_{blake2b(name.encode(), digest_size=_DIGEST).hexdigest()}"
