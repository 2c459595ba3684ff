"""S5. leontrolski 2024, "Postgres as queue": one event at a time, by a materialized CTE, and its bonus features."""
