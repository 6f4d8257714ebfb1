// The server is killed while workers hold jobs, and comes back to the same port and data. A line on standard
// output asks for it, a line on standard input says that it is done.
import { Queue, QueueEvents, Worker } from 'bunqueue/client';
import assert from 'node:assert/strict';

const connection = { host: 'localhost', port: Number(process.env.PORT), commandTimeout: 5000 };
const jobs = 200;
const replies = (async function* () { for await (const line of console) yield line; })();

async function ask(word: string) {
  console.log(`@${word}`);
  assert.equal((await replies.next()).value, 'done');
}

const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms));

async function until(what: string, holds: () => unknown, within = 30_000) {
  const end = Date.now() + within;
  for (;;) {
    try { if (await holds()) return; } catch { /* the server is away */ }
    assert(Date.now() < end, `not within ${within} ms: ${what}`);
    await sleep(20); // between two looks
  }
}

const queue = new Queue<any>('restart', { connection });
const events = new QueueEvents('restart', { connection });
const told: string[] = [];
events.on('completed', ({ jobId }) => told.push(jobId));
events.on('error', () => undefined);
await events.waitUntilReady();

const runs = new Map<string, number>();
let goOn = () => {};
const held = new Promise<void>((isHeld) => {
  const worker = new Worker<any, any>('restart', async (job) => {
    runs.set(job.id, (runs.get(job.id) ?? 0) + 1);
    if (job.name === 'held') await new Promise<void>((done) => { goOn = done; isHeld(); });
    return job.data.n;
  }, { connection, concurrency: 4, heartbeatInterval: 500, lockDuration: 20_000 });
  worker.on('error', () => undefined);
});

const delayed = await queue.add('delayed', { n: -1 }, { delay: 1000 });
const job = await queue.add('held', { n: -2 });
await held;
await sleep(1200); // two heartbeats: its lock outlives the connection
await ask('kill');
await assert.rejects(queue.add('meanwhile', { n: 0 }));
await ask('start');
await until('the client has reconnected', () => queue.getJobCounts());
const more = await queue.addBulk(Array.from({ length: jobs }, (_, n) => ({ name: 'more', data: { n } })));
goOn();
await until('all are done', async () => (await queue.getCompletedCount()) === jobs + 2);
for (const [{ id }, result] of [[job, -2], [delayed, -1], [more[0], 0], [more[jobs - 1], jobs - 1]] as const) {
  assert.equal((await queue.getJob(id))!.returnvalue, result);
}
assert.deepEqual([...runs.values()].filter((count) => count > 1), []);
const probes: string[] = [];
await until('events go on', async () => {
  probes.push((await queue.add('probe', {})).id);
  await sleep(100); // between two probes
  return told.some((id) => probes.includes(id));
});
process.exit(0);
