-- One table per queue. Status: 0 to process, 1 processing, 2 processed, 3 errored.
-- MySQL has no UUID type: its text stands here. Instants are in UTC.
create table event_queue (
    id char(36) primary key,
    status smallint default 0,
    updated_at datetime(6) default (utc_timestamp(6)),
    index event_queue_by_status (status, updated_at)
);

-- Later in the article: for delays, and for what is to be bundled up until the next whole hour. NULL is at once.
alter table event_queue add column ignore_before datetime(6);
