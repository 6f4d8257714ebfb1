import { QueuePro, Worker, WorkerPro } from 'bunqueue/client';
import { expect, test } from 'bun:test';
import { connection, keep, newQueue, plain, sleep, unique, until, work } from './support';

const many = (count: number) => Array.from({ length: count }, (_, n) => ({ name: 'n', data: { n } }));

test('a rate limit of the queue', async () => {
  const queue = newQueue();
  await queue.setGlobalRateLimitAsync(3, 1000);
  expect(plain(await queue.getGlobalRateLimit())).toEqual({ max: 3, duration: 1000 });
  await queue.addBulk(many(7));
  const at: number[] = [];
  work(queue.name, () => { at.push(Date.now()); }, { concurrency: 8 });
  await until('all ran', () => at.length === 7);
  expect(at[6] - at[0]).toBeGreaterThanOrEqual(1300); // three at once, then three a second
  await queue.removeGlobalRateLimitAsync();
  expect(await queue.getGlobalRateLimit()).toBeNull();
  await queue.rateLimit(3_000_000_000);
  expect(plain(await queue.getRateLimitTtl())).toBeGreaterThan(2_999_000_000);
});

test('a concurrency limit of the queue', async () => {
  const queue = newQueue();
  let [now, most, done] = [0, 0, 0];
  await queue.setGlobalConcurrencyAsync(2);
  expect(await queue.getGlobalConcurrency()).toBe(2);
  // Jobs overlap if they may.
  const handler = async () => { most = Math.max(most, ++now); await sleep(30); now--; done++; };
  work(queue.name, handler, { concurrency: 10 });
  work(queue.name, handler, { concurrency: 10 });
  await queue.addBulk(many(12));
  await until('all ran', () => done === 12);
  expect(most).toBe(2);
  await queue.removeGlobalConcurrencyAsync();
  await queue.addBulk(many(12));
  await until('all ran', () => done === 24);
  expect(most).toBeGreaterThan(2);
});

test('a worker that limits itself', async () => {
  const queue = newQueue();
  const at: number[] = [];
  work(queue.name, () => { at.push(Date.now()); }, { concurrency: 5, limiter: { max: 2, duration: 300 } });
  await queue.addBulk(many(5));
  await until('all ran', () => at.length === 5);
  expect(at[4] - at[0]).toBeGreaterThanOrEqual(550);
  let runs = 0;
  const other = newQueue();
  const worker: any = work(other.name, () => {
    if (runs++) return 'second';
    worker.rateLimit(300);
    throw Worker.RateLimitError();
  });
  const job = await other.add('later', {});
  expect(await job.waitUntilFinished(null, 10_000)).toBe('second');
  expect(runs).toBe(2);
});

test('groups take turns, within their limits', async () => {
  const queue = keep(new QueuePro<any>(unique(), { connection }));
  await queue.pauseAsync();
  for (let n = 0; n < 4; n++) for (const group of ['a', 'b', 'c']) await queue.add('g', { group, n }, { group: { id: group } });
  expect([await queue.getGroupJobsCount('a'), await queue.getGroupsJobsCount()]).toEqual([4, 12]);
  await queue.setGroupConcurrency('a', 1);
  await queue.setGroupRateLimit('c', 10, 1000);
  expect(plain([await queue.getGroupConcurrency('a'), await queue.getGroupRateLimit('c')])).toEqual([1, { max: 10, duration: 1000 }]);
  expect([await queue.pauseGroup('b'), await queue.isGroupPaused('b')]).toEqual([true, true]);
  const active: Record<string, number> = { a: 0, b: 0, c: 0 };
  const most: Record<string, number> = { a: 0, b: 0, c: 0 };
  const order: string[] = [];
  keep(new WorkerPro<any, any>(queue.name, async ({ data: { group } }: any) => {
    order.push(group);
    most[group] = Math.max(most[group], ++active[group]);
    await sleep(30); // jobs overlap if they may
    active[group]--;
  }, { connection, concurrency: 6, group: { concurrency: 2 } }));
  await queue.resumeAsync();
  await until('a and c are done', () => order.length === 8);
  expect(order.includes('b')).toBe(false);
  await queue.resumeGroup('b');
  await until('b, too', () => order.length === 12);
  expect(most).toEqual({ a: 1, b: 2, c: 2 });
});

test('order and room within a group', async () => {
  const queue = keep(new QueuePro<any>(unique(), { connection }));
  const order: string[] = [];
  await queue.pauseAsync();
  for (const priority of [3, 1, 0, 2]) await queue.add(`p${priority}`, {}, { group: { id: 'g', priority } });
  expect(queue.add('too many', {}, { group: { id: 'g', maxSize: 4 } })).rejects.toThrow();
  keep(new WorkerPro<any, any>(queue.name, (job: any) => { order.push(job.name); }, { connection }));
  await queue.resumeAsync();
  await until('all ran', () => order.length === 4);
  expect(order).toEqual(['p0', 'p1', 'p2', 'p3']);
});
