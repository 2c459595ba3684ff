create table java_pool (
    tid int primary key,     -- a worker
    taskid int unique        -- its task
);
create table task_pool (
    taskid int primary key,  -- a task
    tid int unique           -- its worker
);

-- The article's `tbl`, whose columns it does not show: pairs of which neither half is there beforehand.
create table pairs (
    tid int primary key,
    taskid int not null unique
);
