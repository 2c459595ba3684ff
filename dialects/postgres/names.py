"""Names as Postgres needs them in a statement, and as a value of `to_regclass`."""

from __future__ import annotations

from typing import Final

from sqlalchemy.dialects import postgresql

# Names are sent as values: this style of parameters leaves a percent sign in them as it is.
PREPARER: Final = postgresql.dialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]
