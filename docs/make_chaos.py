"""Put a table of `make chaos` into docs/guarantees.md.

`make chaos CHAOS_ARGS='--markdown FILE'`, then `python -m docs.make_chaos FILE` in the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).with_name("guarantees.md")
BEGIN: Final = "<!-- chaos: begin -->\n"
END: Final = "<!-- chaos: end -->"


def with_table(page: str, table: str) -> str:
    """The page with this table in its place. Raises ValueError where the page has no such place."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the table: {BEGIN.strip()} and {END} mark it")
    return f"{before}{BEGIN}\n{table.strip()}\n\n{END}{after}"


def main() -> None:
    """Write the page."""
    table = Path(sys.argv[1]).read_text(encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")


if __name__ == "__main__":
    main()
