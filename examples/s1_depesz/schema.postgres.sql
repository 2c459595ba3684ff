-- No id: a row is named by (priority, added_on).
create table queue (
    job text,
    priority int4,
    added_on timestamptz
);
create index queue_by_priority on queue (priority desc, added_on);

-- Later in the article, for the processor that writes down who has a row.
alter table queue add column processed_by int4;
