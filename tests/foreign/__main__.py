"""`python -m tests.foreign`: how many cases there are, file by file, and how they end."""

from __future__ import annotations

from tests.foreign import keys, kinds, names, odd_settings, schemas
from tests.foreign.cases import tally

FILES = {"keys": keys.ALL, "kinds": kinds.ALL, "names": names.ALL, "settings": odd_settings.ALL, "schemas": schemas.ALL}


def main() -> None:
    total = [0, 0]
    for name, cases in FILES.items():
        works, refused = tally(cases)
        total = [total[0] + works, total[1] + refused]
        print(f"{name}: {works} work, {refused} are refused")
    print(f"in all: {total[0]} work, {total[1]} are refused")


main()
