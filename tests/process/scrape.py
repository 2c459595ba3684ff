"""Reads the pages that a running command serves."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.process.command import Command

Samples = dict[tuple[str, str], float]
"""The value of each metric, by its name and its second label; "": it has only the label `table`."""


def address(command: Command) -> str:
    """Where the command serves its pages: it says so on standard error."""
    assert command.process.stderr is not None
    found = (re.search(r"on (http://\S+)", line) for line in command.process.stderr)
    return next(match[1] for match in found if match is not None)


def page(url: str) -> tuple[int, str]:
    """The status and the text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(url: str) -> Samples:
    """What /metrics says."""
    code, text = page(f"{url}/metrics")
    assert code == 200
    return parsed(text)


def parsed(text: str) -> Samples:
    """The samples of a page."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            others = [value for label, value in sample.labels.items() if label != "table"]
            found[sample.name, others[0] if others else ""] = sample.value
    return found
