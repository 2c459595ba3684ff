/*
pg-boss with `work()`, `batchSize`, and `burstWhenBatchFull`: fetch again at once while batches come back full.

https://pgboss.io/api/workers

- Without a burst a worker looks every 2 s, at most every 0.5 s, which decides the speed alone.
- `batchSize`: 1,000 was fastest here, of 100, 500, 1,000.
- A batch that its handler returns from is completed in one statement.
- `supervise: false, schedule: false`: no maintenance and no cron in the workers' processes.
- Jobs are enqueued with `insert`, a thousand in a statement.
*/

import { PgBoss } from "pg-boss";

const QUEUE = "bench";

async function started(order) {
  const boss = new PgBoss({ connectionString: order.dsn, supervise: false, schedule: false });
  boss.on("error", (error) => process.stderr.write(`${error}\n`));
  await boss.start();
  return boss;
}

export async function fill(order, job = (data) => ({ data })) {
  const boss = await started(order);
  await boss.createQueue(QUEUE);
  for await (const chunk of order.chunks()) {
    await boss.insert(QUEUE, chunk.map(job));
  }
  await boss.stop();
}

export async function work(order, line, more = {}) {
  const boss = await started(order);
  const [stop] = await line.ready();
  const options = { batchSize: order.batch, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true, ...more };
  await boss.work(QUEUE, options, async (jobs) => {
    for (const { data } of jobs) line.did(data.d);
  });
  await stop;
  await boss.stop({ graceful: false });
}
