-- One table per queue. Status: 0 to process, 1 processing, 2 processed, 3 errored.
create table event_queue (
    id uuid primary key,
    status smallint default 0,
    updated_at timestamptz default now()
);
create index event_queue_by_status on event_queue (status, updated_at);

-- Later in the article: for delays, and for what is to be bundled up until the next whole hour. NULL is at once.
alter table event_queue add column ignore_before timestamptz;
