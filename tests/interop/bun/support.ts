// What all scenarios need. Each file is run by `bun test` against a server of its own: its port is in PORT, and if it
// speaks TLS, the file of its authority in CA.
import { afterAll } from 'bun:test';
import { FlowProducer, Queue, QueueEvents, Worker } from 'bunqueue/client';

const { PORT, CA } = process.env;
export const connection = { host: 'localhost', port: Number(PORT), ...(CA ? { tls: { caFile: CA } } : {}) };

let serial = 0;
export const unique = (what = 'q') => `${what}-${process.pid}-${++serial}`;

const opened: { close(): unknown }[] = [];

/** What is opened here is closed after the last test of the file. */
export function keep<T extends { close(): unknown }>(thing: T): T {
  opened.push(thing);
  return thing;
}

afterAll(async () => {
  for (const thing of opened.reverse()) await thing.close();
});

export const newQueue = (name = unique(), options = {}) => keep(new Queue<any>(name, { connection, ...options }));
export const newFlows = () => keep(new FlowProducer({ connection }));

export async function listen(name: string): Promise<QueueEvents> {
  const events = keep(new QueueEvents(name, { connection }));
  await events.waitUntilReady();
  return events;
}

export type Handler = (job: any, context?: any) => any;

export function work(name: string, handler: Handler, options = {}): Worker<any, any> {
  return keep(new Worker<any, any>(name, handler, { connection, ...options }));
}

export const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms));

/** Wait until something holds. */
export async function until(what: string, holds: () => unknown, within = 15_000): Promise<void> {
  const end = Date.now() + within;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`not within ${within} ms: ${what}`);
    await sleep(10); // between two looks
  }
}

export async function reaches(job: any, ...states: string[]): Promise<string> {
  let state = '';
  await until(`${job.name} is ${states}, not ${state}`, async () => states.includes((state = await job.getState())));
  return state;
}

/** Fails on values that a 64-bit integer would become, which no arithmetic of JavaScript mixes with numbers. */
export function plain<T>(value: T, path = ''): T {
  if (typeof value === 'bigint') throw new Error(`a BigInt at ${path || 'the top'}: ${value}`);
  if (value && typeof value === 'object') {
    for (const [key, entry] of Object.entries(value)) if (typeof entry !== 'function') plain(entry, `${path}.${key}`);
  }
  return value;
}

export const names = (jobs: any[]) => jobs.map((job) => job.name);
