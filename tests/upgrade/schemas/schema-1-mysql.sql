CREATE TABLE jobs (
    id INTEGER NOT NULL AUTO_INCREMENT,
    d VARCHAR(64) NOT NULL,
    e VARCHAR(64) NOT NULL,
    status ENUM('unclaimed','claimed','done','dead') NOT NULL DEFAULT 'unclaimed',
    owner_id INTEGER,
    owner_date DATETIME,
    priority INTEGER NOT NULL DEFAULT '0',
    run_at DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6)),
    attempts INTEGER NOT NULL DEFAULT '0',
    last_error TEXT,
    suspect INTEGER NOT NULL DEFAULT '0',
    PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4 COMMENT='jobs of the demonstration, made by claimjobs';

CREATE INDEX jobs_claim ON jobs (status, priority, id, run_at, suspect);

CREATE INDEX jobs_d ON jobs (d);

CREATE TABLE claimjobs_owners (
    id INTEGER NOT NULL AUTO_INCREMENT,
    host VARCHAR(255) NOT NULL,
    pid INTEGER NOT NULL,
    claims VARCHAR(255) NOT NULL COMMENT 'the table it takes jobs from',
    started DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6)),
    beat DATETIME(6) NOT NULL COMMENT 'last sign of life' DEFAULT (utc_timestamp(6)),
    lease FLOAT NOT NULL COMMENT 'seconds without a beat after which it is dead',
    server_since DATETIME(6) COMMENT 'the server run it holds its session lock on; NULL: lease only',
    died DATETIME(6) COMMENT 'when it was declared dead; it never comes back under this id',
    asleep DATETIME(6) COMMENT 'since when it waits to be called; NULL: it looks for work by itself',
    PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4 AUTO_INCREMENT=10000000 COMMENT='made by claimjobs';

CREATE TABLE orders_claims (
    id INTEGER NOT NULL,
    status ENUM('unclaimed','claimed','done','dead') NOT NULL DEFAULT 'unclaimed',
    owner_id INTEGER,
    owner_date DATETIME,
    run_at DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6)),
    attempts INTEGER NOT NULL DEFAULT '0',
    last_error TEXT,
    suspect INTEGER NOT NULL DEFAULT '0',
    PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE INDEX orders_claims_state ON orders_claims (status, owner_id);

ALTER TABLE orders_claims COMMENT 'made by claimjobs';

CREATE TABLE claimjobs_ledger (
    digest VARCHAR(64) COLLATE utf8mb4_bin NOT NULL COMMENT 'SHA-256 of the queue''s name and the job''s key',
    queue VARCHAR(255) COLLATE utf8mb4_bin NOT NULL,
    job VARCHAR(255) COLLATE utf8mb4_bin NOT NULL COMMENT 'the job''s key as text, perhaps cut short',
    done_at DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6)),
    PRIMARY KEY (digest)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE INDEX claimjobs_ledger_age ON claimjobs_ledger (queue, done_at);

ALTER TABLE claimjobs_ledger COMMENT 'made by claimjobs';
