create table items (
    id serial primary key,
    available boolean default true not null
);
create index items_available on items (id) where available;

-- A second queue in the same database, with the same ids.
create table orders (
    id serial primary key,
    available boolean default true not null
);
create index orders_available on orders (id) where available;
