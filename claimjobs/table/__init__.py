"""Which table, which column plays which role, how a row expresses its state; DDL."""
