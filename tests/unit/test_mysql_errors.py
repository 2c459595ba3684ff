"""What an error of MySQL says, by its number and its words. No server is asked."""

from __future__ import annotations

import pymysql
import pytest
import sqlalchemy as sa

from claimjobs.dialects.mysql.dialect import MySQL


def error(code: int, words: str) -> sa.exc.DBAPIError:
    return sa.exc.DBAPIError("SELECT 1", None, pymysql.err.OperationalError(code, words))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1142, "SELECT command denied to user 'app'@'localhost' for table 'jobs'"),
        (1142, "SELECT command denied to user 'app'@'localhost' for table `shop`.`jobs`"),
        (1143, "UPDATE command denied to user 'app'@'localhost' for column 'status' in table 'jobs'"),
    ],
)
def test_a_right_that_is_missing_names_its_table(code: int, words: str) -> None:
    expected = "jobs" if " for table " in words else None
    assert MySQL().errors.denied_table(error(code, words)) == expected


def test_another_error_about_a_table_denies_nothing() -> None:
    assert MySQL().errors.denied_table(error(1146, "Table 'shop.jobs' doesn't exist for table 'jobs'")) is None
