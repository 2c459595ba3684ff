"""The key: whether the numbers of its type will be used up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from claimjobs.dialects.inspection import NotShown
from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding
from claimjobs.statements import samples
from claimjobs.table.reflection import columns_in_database
from claimjobs.table.value_ranges import integer_range

ENOUGH: Final = 2**63 - 1
"""At a million jobs a second these numbers last for 290,000 years."""
MUCH: Final = 0.5
"""A key that has used up a larger part of its numbers is a warning."""


def key_numbers(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """How many of its numbers the key has used up. None for a key that has enough of them, or of several columns: the
    highest one of a single column is at the end of its index. Raises NotShown for a table without rows.
    """
    roles = subject.backend.source
    first, *others = roles.key
    type_ = columns_in_database(connection, roles.table)[first.name]["type"]
    if others or not isinstance(type_, sa.Integer) or integer_range(type_)[1] >= ENOUGH:
        return
    highest, most = connection.scalar(samples.highest(roles.table, first)), integer_range(type_)[1]
    if highest is None:
        raise NotShown("the table has no row, and only a row says how many numbers of its key are used up")
    says = f"the highest {first.name} is {highest:,}, and the column holds numbers up to {most:,}"
    if highest <= MUCH * most:
        yield Finding("key", "ok", says)
        return
    step = (
        "then no job can be inserted. Make a table whose key is BIGINT, and let this one run empty; or make the column "
        "BIGINT while nobody uses the table, because the database copies it; with it the sequence that numbers it, and "
        "a side-car"
    )
    yield Finding("key", "warning", f"{says}: {step}")
