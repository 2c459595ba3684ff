-- No id: a row is named by (priority, added_on).
-- MySQL's timestamp has whole seconds unless told otherwise; without NOT NULL it must be told that it may be NULL.
create table queue (
    job text,
    priority int,
    added_on timestamp(6) null
);
create index queue_by_priority on queue (priority desc, added_on);

-- Later in the article, for the processor that writes down who has a row. MySQL's connection ids need more bits.
alter table queue add column processed_by bigint;
