// What a contender's own process does, as bench/role.py does it for Python: DSN setup | fill N | produce SECONDS | probe N | work.
import fs from "node:fs";
import readline from "node:readline";

const WARM_UP = 10;
const LAYOUT_BYTES = 24; // count, first call, last call
const LOST_SECONDS = 15;

export const [dsn, role, given] = process.argv.slice(2);
export const amount = Number(given);

/** Counts handlers in the file that Python reads; written once a millisecond, and at once while a probe waits. */
export class Tracker {
  constructor(path = process.env.BENCH_TRACK) {
    this.fd = fs.openSync(path, "r+");
    this.bytes = Buffer.alloc(LAYOUT_BYTES);
    this.calls = 0;
    this.first = 0;
    this.last = 0;
    this.atOnce = Boolean(process.env.BENCH_AT_ONCE);
    if (!this.atOnce) setInterval(() => this.write(), 1);
  }
  hit() {
    this.calls++;
    this.last = now();
    this.first ||= this.last;
    this.dirty = true;
    if (this.atOnce) this.write();
  }
  write() {
    if (!this.dirty) return;
    this.dirty = false;
    this.bytes.writeBigInt64LE(BigInt(this.calls), 0);
    this.bytes.writeDoubleLE(this.first, 8);
    this.bytes.writeDoubleLE(this.last, 16);
    fs.writeSync(this.fd, this.bytes, 0, LAYOUT_BYTES, 0);
  }
}

/** `send(i)` one job, `many(n)` all of them; both return promises. */
export async function produce({ send, many }) {
  if (role === "fill") return await fill(many);
  if (role === "produce") return await sendFor(send);
  return await probe(send);
}

export function connection() {
  const parts = Object.fromEntries(dsn.split(" ").map((part) => part.split("=")));
  return { host: parts.host, port: Number(parts.port), user: parts.user, database: parts.dbname };
}

export function* chunks(n, size) {
  for (let start = 0; start < n; start += size) yield Array.from({ length: Math.min(size, n - start) }, (_, k) => start + k);
}

async function fill(many) {
  const begun = now();
  await many(amount);
  say({ n: amount, seconds: now() - begun });
}

async function sendFor(send) {
  for (let i = 0; i < WARM_UP; i++) await send(i);
  console.log("ready");
  await new Promise((go) => readline.createInterface({ input: process.stdin }).once("line", go));
  const begun = now();
  let n = 0;
  while (now() - begun < amount) await send(n++);
  say({ n, seconds: now() - begun });
}

async function probe(send) {
  const known = read().calls;
  const picked = [];
  const whole = [];
  for (let i = 0; i < WARM_UP + amount; i++) {
    const begun = now();
    await send(i);
    const sent = now();
    const began = await beginOfTheNext(known + i, sent);
    if (i >= WARM_UP) {
      picked.push(1000 * Math.max(0, began - sent));
      whole.push(1000 * (began - begun));
    }
    await sleep(5 + Math.random() * 35);
  }
  say({ picked, whole });
}

async function beginOfTheNext(known, sent) {
  for (;;) {
    const count = read();
    if (count.calls > known) return count.last;
    if (now() - sent > LOST_SECONDS) throw new Error(`no handler began within ${LOST_SECONDS} s`);
    await sleep(1);
  }
}

function read() {
  const bytes = fs.readFileSync(process.env.BENCH_TRACK);
  return { calls: Number(bytes.readBigInt64LE(0)), last: bytes.readDoubleLE(16) };
}

const now = () => (performance.timeOrigin + performance.now()) / 1000;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const say = (facts) => console.log(JSON.stringify(facts));
