create table jobs (
    id integer not null primary key auto_increment,
    d varchar(64) not null,
    e varchar(64) not null,
    status enum('unclaimed', 'claimed', 'done') not null,
    owner_id integer null,
    owner_date datetime null,
    index(d),
    index(status)
);
