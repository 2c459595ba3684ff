"""Why some mutants survive: by file, the lines that are changed, and what they are changed into."""

from __future__ import annotations

from typing import Final

EXPLAINED: Final[dict[tuple[str, str, str], str]] = {}
"""Each is equivalent, for the reason that is given: nobody who uses the package could see it."""
