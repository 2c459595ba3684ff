"""Masking: hides the secrets of a URL in a text, wherever and however they are written in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK: Final = "***"
SECRET: Final = r"pass|pwd|secret|token|credential|ssl_?key|scram_[a-z]+_key"  # noqa: S105 - names of options
"""Matches the name of an option whose value is a secret, or leads to one."""

_LOOSE: Final = 4
"""Shorter secrets are masked only as whole words, because most texts contain them."""
_IN_URL: Final = re.compile(r"(:/+[^:/@\s]*):\S*@")
_OPTION: Final = re.compile(rf"(?i)([\w%.-]*(?:{SECRET})[\w%.-]*\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&,;)'\"]+)")
_QUERY: Final = re.compile(r"[?&;]([^=&;]*)=([^&]*)")


def masked(text: str, urls: Iterable[str] = ()) -> str:
    """The text without the secrets of the given URLs, and of any URL or option in the text."""

    def option_masked(found: re.Match[str]) -> str:
        quotes = found[2][0] if found[2][0] in "'\"" else ""
        return f"{found[1]}{quotes}{MASK}{quotes}"

    found = {written for url in urls for secret in _secrets(url) for written in _writings(secret)}
    for secret in sorted(found, key=len, reverse=True):
        short = len(secret) < _LOOSE
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text) if short else text.replace(secret, MASK)
    return _OPTION.sub(option_masked, _IN_URL.sub(rf"\1:{MASK}@", text))


def is_secret(option: str) -> bool:
    """Whether the value of an option of this name is a secret."""
    return re.search(SECRET, unquote(option), re.IGNORECASE) is not None


def _secrets(url: str) -> Iterator[str]:
    """What may be a secret in it. If an @ or a colon is not quoted as it should be, all possible passwords."""
    colons = [found.end() for found in re.finditer(r":(?!/)", url)]
    ends = [found.start() for found in re.finditer("@", url)]
    yield from (url[colon:end] for colon in colons for end in ends if colon < end)
    if not ends:
        yield from (found[1] for found in re.finditer(r":/+[^:/?]*:([^/?]*[^\d/?][^/?]*)", url))
    yield from (value for name, value in _QUERY.findall(url) if is_secret(name))


def _writings(secret: str) -> Iterator[str]:
    """The forms of a secret: as written, as sent, and as a message may show it."""
    for meant in {secret, unquote(secret), unquote_plus(secret)} - {"", MASK}:
        # A byte that is no UTF-8 is half of a surrogate pair, which must be no error where one is told of.
        yield meant
        yield from (quote(meant, safe, errors="surrogatepass") for safe in ("/", "", " +"))
        yield quote_plus(meant, errors="surrogatepass")
        yield from (repr(meant)[1:-1], json.dumps(meant)[1:-1], " ".join(meant.split()))
