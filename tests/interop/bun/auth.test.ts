// A server that wants a token: it is in TOKEN.
import { Queue, QueueEvents, Worker } from 'bunqueue/client';
import { expect, test } from 'bun:test';
import { connection, keep, sleep, unique, until } from './support';

const token = process.env.TOKEN;
const allowed = { connection: { ...connection, token } };

test('queue, worker and events with the token', async () => {
  const queue = keep(new Queue<any>(unique(), allowed));
  const events = keep(new QueueEvents(queue.name, allowed));
  await events.waitUntilReady();
  const seen: string[] = [];
  events.on('completed', ({ jobId }) => seen.push(jobId));
  keep(new Worker(queue.name, () => 'ok', allowed));
  const job = await queue.add('x', {});
  await until('it was told', () => seen.length === 1);
  expect([seen[0], await job.getState()]).toEqual([job.id, 'completed']);
});

test.each([[undefined, 'Not authenticated'], ['wrong', /Authentication failed|Connection lost/]])('with the token %p', async (wrong, reason) => {
  const name = unique();
  const queue = new Queue<any>(name, { connection: { ...connection, token: wrong as string, commandTimeout: 2000 } });
  expect(queue.add('x', {})).rejects.toThrow(reason as any);
  await sleep(300); // in which a wrong server would have let it in
  expect(await keep(new Queue(name, allowed)).countAsync()).toBe(0);
});
