"""Tables that claimjobs makes itself, and those that others made under their names."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from claimjobs import Queue, make, tables_for
from claimjobs.errors import NotClaimable
from claimjobs.explain.adoption import additions
from tests.backends import Backend

STORED = "is stored by MyISAM.*: ALTER TABLE {} ENGINE=InnoDB"


@pytest.mark.requires("table collation")
def test_owners_without_row_locks_are_refused(database: Backend) -> None:
    database.make()
    database.run("ALTER TABLE claimjobs_owners ENGINE=MyISAM")
    with pytest.raises(NotClaimable, match=STORED.format(".*claimjobs_owners")):
        database.bare_queue().check()
    with pytest.raises(NotClaimable, match=STORED.format(".*claimjobs_owners")):
        database.make()


@pytest.mark.requires("table collation")
def test_a_description_that_names_no_engine_is_made_with_one_or_refused(database: Backend) -> None:
    engine = database.new_engine(connect_args={"init_command": "SET SESSION default_storage_engine = MyISAM"})
    make(engine, tables_for("jobs"))  # ours name theirs
    plain = sa.Table("plain", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    with pytest.raises(NotClaimable, match=STORED.format("plain")):
        make(engine, [plain])


@pytest.mark.requires("table collation")
def test_nothing_is_added_to_a_table_without_row_locks(database: Backend) -> None:
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY) ENGINE=MyISAM")
    with pytest.raises(NotClaimable, match=STORED.format("orders")):
        additions(database.engine, Queue(database.engine, "orders").settings, ["owner_id"])


def test_a_temporary_table_is_refused(database: Backend) -> None:
    engine = database.new_engine(pool_size=1)  # other sessions have no such table
    with engine.connect() as connection:
        connection.execute(sa.text("CREATE TEMPORARY TABLE drafts (id INTEGER PRIMARY KEY, status VARCHAR(9))"))
        connection.commit()
    with pytest.raises(NotClaimable, match=r"'drafts' is a temporary table.*: make a table that is not temporary"):
        Queue(engine, "drafts", hold="transaction", on_done="delete").check()
    engine.dispose()
