// graphile-worker: its settings of speed (a local queue, completions in batches without delay).
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";
import { Tracker, amount, chunks, connection, produce, role } from "./role.mjs";

const pgPool = new pg.Pool({ ...connection(), max: 20 });
const logger = new Logger(() => () => {});

if (role === "setup") {
  await runMigrations({ pgPool, logger });
  await pgPool.end();
} else if (role === "work") {
  const tracker = new Tracker();
  const worker = {
    concurrentJobs: 24,
    maxPoolSize: 20,
    pollInterval: 2000,
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
    logger,
  };
  await run({ pgPool, noHandleSignals: true, taskList: { noop: () => tracker.hit() }, preset: { worker } });
} else {
  const utils = await makeWorkerUtils({ pgPool, logger });
  const job = (n) => ({ identifier: "noop", payload: { n } });
  const many = async (n) => {
    for (const chunk of chunks(n, 5000)) await utils.addJobs(chunk.map(job));
  };
  await produce({ send: (n) => utils.addJob("noop", { n }), many });
  process.exit(0);
}
