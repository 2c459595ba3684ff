-- MySQL has no partial index: `available` comes first instead.
create table items (
    id serial primary key,
    available boolean default true not null,
    index items_available (available, id)
);

-- A second queue in the same database, with the same ids.
create table orders (
    id serial primary key,
    available boolean default true not null,
    index orders_available (available, id)
);
