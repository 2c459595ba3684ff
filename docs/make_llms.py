"""Make docs/llms.txt, the list of all pages for programs that read them: `python -m docs.make_llms` in the repository.

Each page has its title and its first sentence there, in the order of docs/index.md. The form is that of llmstxt.org.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent
PAGE: Final = DOCS / "llms.txt"
LONGEST: Final = 200


def page() -> str:
    """The list as it should be."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    about = " ".join(index.partition("\n\n")[2].partition("\n\n")[0].split())
    lines = ["# claimjobs", "", f"> {about}"]
    for caption, names in re.findall(r":caption: (.+)\n\n((?:.+\n)+)```", index):
        lines += ["", f"## {caption}", ""]
        lines += [_line(f"{name}.md") for name in names.split()]
    return "\n".join(lines) + "\n"


def _line(path: str) -> str:
    text = (DOCS / path).read_text(encoding="utf-8")
    title, _, rest = text.partition("\n")
    first = next((part for part in rest.split("\n\n") if re.match(r"\s*(?!```)[A-Za-z`*]", part)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", lambda found: found[1] or "", " ".join(first.split()))
    sentence = re.split(r"(?<=[.:]) ", plain)[0]
    return f"- [{title.removeprefix('# ')}]({path}): {sentence[:LONGEST]}".rstrip(": ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")
