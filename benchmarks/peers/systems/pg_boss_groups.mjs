/*
pg-boss with `groupConcurrency: 5`: at most five jobs of each of 100 groups are active, over all workers.

https://pgboss.io/api/workers

- All else is what pg_boss.mjs does. With groups a batch is full only if there are so many jobs below the limit.
*/

import * as plain from "./pg_boss.mjs";

const GROUPS = 100;
const LIMIT = 5;

export function fill(order) {
  return plain.fill(order, (data) => ({ data, group: { id: String(Number(data.d.slice(-8)) % GROUPS) } }));
}

export function work(order, line) {
  return plain.work(order, line, { groupConcurrency: LIMIT });
}
