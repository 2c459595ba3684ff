-- The article's two functions. NULL: nothing was free, or its lock could not be had.
-- Only Postgres has advisory locks that end with the transaction: on MySQL there is nothing to compare with.
create or replace function set_master(v_taskid int) returns int as $$
declare
  res int;
begin
  update java_pool set taskid=$1
  where tid in
  (select tid from java_pool where pg_try_advisory_xact_lock(tid) and pg_try_advisory_xact_lock($1) and taskid is null limit 1)
  and pg_try_advisory_xact_lock($1)
  returning tid into res;

  return res;

  exception when unique_violation then
    return -1;  -- this task already has a worker
  when others then
    return -2;  -- another session is at it
end;
$$ language plpgsql strict;

create or replace function set_tid(v_tid int) returns int as $$
declare
  res int;
begin
  update task_pool set tid=$1
  where taskid in
  (select taskid from task_pool where pg_try_advisory_xact_lock(taskid) and pg_try_advisory_xact_lock($1) and tid is null limit 1)
  and pg_try_advisory_xact_lock($1)
  returning taskid into res;

  return res;

  exception when unique_violation then
    return -1;  -- this worker already has a task
  when others then
    return -2;  -- another session is at it
end;
$$ language plpgsql strict;
