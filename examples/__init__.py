"""The systems of five articles, each on its own table: as its author built it, and with claimjobs."""
