/*
graphile-worker with the settings of its own page of performance figures: `concurrentJobs: 24`, `maxPoolSize: 25`,
`localQueue.size` as the batch size, `completeJobBatchDelay: 0`, `failJobBatchDelay: 0`.

https://worker.graphile.org/docs/performance

- `localQueue`: so many jobs are fetched and locked at once and handed out in the process. Its page has 500; 1,000 was
  no faster here, 100 slower.
- `completeJobBatchDelay: 0`: jobs that are done in the same tick are deleted in one statement.
- No crontab, and only errors are logged.
- Jobs are enqueued with `addJobs`, a thousand in a statement.
*/

import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";

const CONCURRENT = 24;

const logger = new Logger(() => (level, message) => {
  if (level === "error") process.stderr.write(`${message}\n`);
});

export async function fill(order) {
  const options = { connectionString: order.dsn, logger };
  await runMigrations(options);
  const utils = await makeWorkerUtils(options);
  for await (const chunk of order.chunks()) {
    await utils.addJobs(chunk.map((payload) => ({ identifier: "job", payload })));
  }
  await utils.release();
}

export async function work(order, line) {
  const preset = {
    worker: {
      connectionString: order.dsn,
      concurrentJobs: CONCURRENT,
      maxPoolSize: CONCURRENT + 1,
      localQueue: { size: order.batch },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  };
  const taskList = { job: async ({ d }) => line.did(d) };
  const [stop] = await line.ready();
  const runner = await run({ preset, taskList, logger, noHandleSignals: true, parsedCronItems: [] });
  await stop;
  await runner.stop();
}
