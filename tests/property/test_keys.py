"""A key may have any type that is stored exactly, and a user's type around it: each job is held by one owner, and ends.

The same keys every time. CLAIMJOBS_EXAMPLES=500 searches on from there, at random.
"""

from __future__ import annotations

import enum
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any, Final

import hypothesis.strategies as st
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from sqlalchemy.dialects import mysql

from claimjobs import Queue, Retry, job_table
from claimjobs.errors import KeyUnfit
from claimjobs.options import CLAIMS
from tests.backends import Backend

MORE: Final = int(os.environ.get("CLAIMJOBS_EXAMPLES", "0"))
PROFILE = settings(
    max_examples=MORE or 12,
    derandomize=not MORE,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
MYSQL: Final = ("mysql", "mariadb")
NUMBERS: Final = count()


class Parcel(enum.Enum):
    """Its names are stored, not its values."""

    SMALL = "up to 2 kg"
    LARGE = "up to 20 kg"
    BULKY = "by lorry"
    FRAGILE = "by hand"


@dataclass(frozen=True)
class Shown:
    """What Python has in place of the stored value."""

    stored: Any

    def __str__(self) -> str:
        return f"not what is stored ({self.stored})"


class Wrapped(sa.TypeDecorator[Shown]):
    """A type of the user's around another one."""

    impl = sa.String
    cache_ok = True

    def __init__(self, inner: sa.types.TypeEngine[Any]) -> None:
        super().__init__()
        self.inner = inner

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(self.inner)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return value.stored if isinstance(value, Shown) else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return None if value is None else Shown(value)


@dataclass(frozen=True)
class Kind:
    """A type of a column, and its nth value."""

    type_: Callable[[], sa.types.TypeEngine[Any]]
    value: Callable[[int], Any]


NOON: Final = datetime(2024, 5, 1, 12, 0, 0, 250, UTC)
KINDS: Final = {
    "text": Kind(lambda: sa.String(60), lambda n: f"{n}'\"%s\\,ö"),
    "characters": Kind(lambda: sa.CHAR(9), lambda n: f"c {n}"),
    "enum": Kind(lambda: sa.Enum(Parcel, native_enum=False), lambda n: list(Parcel)[n]),
    "database's enum": Kind(lambda: sa.Enum(Parcel), lambda n: list(Parcel)[n]),
    "uuid": Kind(sa.Uuid, lambda n: uuid.UUID(int=n)),
    "uuid as text": Kind(lambda: sa.Uuid(as_uuid=False), lambda n: str(uuid.UUID(int=n))),
    "uuid as characters": Kind(lambda: sa.Uuid(native_uuid=False), lambda n: uuid.UUID(int=n)),
    "bytes": Kind(lambda: sa.LargeBinary().with_variant(mysql.VARBINARY(20), *MYSQL), lambda n: bytes([0, 255, n])),
    "number": Kind(sa.BigInteger, lambda n: -(2**40) + n),
    "decimal": Kind(lambda: sa.Numeric(20, 5), lambda n: Decimal(n) + Decimal("0.10001")),
    "truth": Kind(sa.Boolean, bool),
    "day": Kind(sa.Date, lambda n: date(2024, 2, 28) + timedelta(days=n)),
    "time": Kind(
        lambda: sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *MYSQL),
        lambda n: NOON.replace(tzinfo=None) + timedelta(hours=n),
    ),
    "instant": Kind(
        lambda: sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *MYSQL),
        lambda n: NOON + timedelta(hours=n),
    ),
}
KINDS_OF_QUEUE: Final[list[dict[str, Any]]] = [*({"claims": claims} for claims in CLAIMS), {"hold": "transaction"}]
REFUSED: Final = "database's enum"
"""A database that would not find its rows refuses it."""
PART = st.tuples(st.sampled_from(list(KINDS)), st.booleans()).map(
    lambda part: (part[0], part[1] and part[0] != REFUSED)
)
PARTS = st.lists(PART, min_size=1, max_size=3)
"""The kinds of the columns of a key, and whether a type of the user's is around each. (SQLAlchemy does not create the
type of an enum within another type.)"""


def table_of(parts: Sequence[tuple[str, bool]]) -> sa.Table:
    columns = []
    for place, (kind, is_wrapped) in enumerate(parts):
        type_ = KINDS[kind].type_()
        columns.append(
            sa.Column(f"k{place}", Wrapped(type_) if is_wrapped else type_, primary_key=True, autoincrement=False)
        )
    return job_table(f"jobs_{next(NUMBERS)}", sa.MetaData(), *columns)


def rows_of(parts: Sequence[tuple[str, bool]]) -> list[dict[str, Any]]:
    """Rows that differ in each column of the key."""
    how_many = 2 if any(kind == "truth" for kind, _ in parts) else 4
    return [
        {
            f"k{place}": Shown(KINDS[kind].value(n)) if is_wrapped else KINDS[kind].value(n)
            for place, (kind, is_wrapped) in enumerate(parts)
        }
        for n in range(how_many)
    ]


def keys(*batches: Any) -> list[Any]:
    return [job.key for batch in batches for job in batch.jobs]


def check(one: Queue, other: Queue, rows: list[dict[str, Any]]) -> None:
    assert one.enqueue(rows) == len(rows)
    first, second = one.claim(1), other.claim(len(rows))
    assert (len(first), len(second)) == (1, len(rows) - 1)
    assert len(set(keys(first, second))) == len(rows)
    first.fail(first.jobs[0], "again", retry_in=0)
    first.settle()
    second.done()
    second.settle()
    again = other.claim(len(rows))
    assert keys(again) == keys(first)
    again.done()
    again.settle()
    assert not [*first.lost, *second.lost, *again.lost]
    assert one.enqueue(rows) == len(rows)
    done = []
    for batch in one.batches(2, drain=True):  # a settle and the next claim are sent together
        with batch:
            batch.done()
        done += keys(batch)
    assert (len(done), len(set(done)), one.report.lost) == (len(rows), len(rows), 0)


def test_any_key_is_held_by_one_owner_and_its_job_ends(backend: Backend) -> None:
    @PROFILE
    @given(parts=PARTS, kind=st.sampled_from(KINDS_OF_QUEUE))
    def holds(parts: list[tuple[str, bool]], kind: dict[str, Any]) -> None:
        table = table_of(parts)
        one, other = (backend.queue(table, on_done="delete", retry=Retry(attempts=2), **kind) for _ in range(2))
        try:
            check(one, other, rows_of(parts))
            assert not backend.rows(table)
        except KeyUnfit:
            assert REFUSED in dict(parts)
        finally:
            one.close()
            other.close()
            table.drop(backend.engine)

    holds()
