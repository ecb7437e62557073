// pg-boss: batches of 500, LISTEN/NOTIFY.
import { PgBoss } from "pg-boss";
import { Tracker, chunks, connection, produce, role } from "./role.mjs";

const working = role === "work";
const boss = new PgBoss({ ...connection(), max: 4, supervise: working, schedule: false, useListenNotify: working });
boss.on("error", (error) => console.error(String(error)));
await boss.start();

if (role === "setup") {
  await boss.createQueue("bench", { notify: true });
  await boss.stop({ graceful: false });
  process.exit(0);
} else if (working) {
  const tracker = new Tracker();
  const options = { batchSize: 500, burstWhenBatchFull: true, localConcurrency: 1, pollingIntervalSeconds: 0.5 };
  await boss.work("bench", options, async (jobs) => jobs.forEach(() => tracker.hit()));
} else {
  const many = async (n) => {
    for (const chunk of chunks(n, 5000)) await boss.insert("bench", chunk.map((k) => ({ data: { n: k } })));
  };
  await produce({ send: (n) => boss.send("bench", { n }), many });
  process.exit(0);
}
