/*
pg-boss with `groupConcurrency: 5`: at most five jobs of each of 100 groups are active, over all workers.

https://pgboss.io/api/workers

- All else is what pg_boss.mjs does. With groups a batch is full only if there are so many jobs below the limit.
*/

import { PgBoss } from "pg-boss";

const QUEUE = "bench";
const GROUPS = 100;
const LIMIT = 5;

async function started(order) {
  const boss = new PgBoss({ connectionString: order.dsn, supervise: false, schedule: false });
  boss.on("error", (error) => process.stderr.write(`${error}\n`));
  await boss.start();
  return boss;
}

export async function fill(order) {
  const boss = await started(order);
  await boss.createQueue(QUEUE);
  for await (const chunk of order.chunks()) {
    const grouped = chunk.map((data) => ({ data, group: { id: String(Number(data.d.slice(-8)) % GROUPS) } }));
    await boss.insert(QUEUE, grouped);
  }
  await boss.stop();
}

export async function work(order, line) {
  const boss = await started(order);
  const [stop] = await line.ready();
  const options = {
    batchSize: order.batch,
    groupConcurrency: LIMIT,
    pollingIntervalSeconds: 0.5,
    burstWhenBatchFull: true,
  };
  await boss.work(QUEUE, options, async (jobs) => {
    for (const { data } of jobs) line.did(data.d);
  });
  await stop;
  await boss.stop({ graceful: false });
}
