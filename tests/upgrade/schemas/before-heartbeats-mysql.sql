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
    PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE INDEX jobs_d ON jobs (d);

CREATE INDEX jobs_claim ON jobs (status, priority, id, run_at);

CREATE TABLE claimjobs_owners (
    id INTEGER NOT NULL AUTO_INCREMENT,
    host VARCHAR(255) NOT NULL,
    pid INTEGER NOT NULL,
    claims VARCHAR(255) NOT NULL COMMENT 'the table it takes jobs from',
    started DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6)),
    PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4 AUTO_INCREMENT=10000000;
