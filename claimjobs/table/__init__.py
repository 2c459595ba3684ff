"""Which table, which column plays which role, what a row says of its state; DDL."""
