import { expect, test } from 'bun:test';
import { connection, names, newQueue, plain, sleep, unique, until } from './support';
import { Queue } from 'bunqueue/client';

test('a job comes back as it was added', async () => {
  const queue = newQueue();
  await queue.waitUntilReady();
  const added = await queue.add('send', { to: 'ada', name: 'its own', list: [1, null, { deep: true }] });
  const job: any = plain(await queue.getJob(added.id));
  expect([job.id, job.name, job.queueName]).toEqual([added.id, 'send', queue.name]);
  expect(job.data).toEqual({ to: 'ada', name: 'its own', list: [1, null, { deep: true }] });
  expect(Math.abs(job.timestamp - Date.now())).toBeLessThan(60_000);
  expect([await job.getState(), await job.isWaiting(), job.attemptsMade, job.progress]).toEqual(['waiting', true, 0, 0]);
  expect(plain(job.toJSON()).name).toBe('send');
});

test.each([
  ['text', 'plain text ✓'],
  ['number', 42.5],
  ['large number', 2 ** 53 - 1],
  ['list', [1, 'two', [3]]],
  ['null', null],
  ['bytes', { bytes: new Uint8Array([1, 2, 255]) }],
  ['time', { at: 1_800_000_000_000 }],
])('data may be %s', async (name, data) => {
  const queue = newQueue();
  const { id } = await queue.add(name, data);
  const found: any = (await queue.getJob(id))!.data;
  expect(data && typeof data === 'object' && 'bytes' in data ? { bytes: new Uint8Array(found.bytes) } : found).toEqual(data);
});

test('options are kept', async () => {
  const queue = newQueue();
  const id = unique('own');
  await queue.add('all', {}, {
    jobId: id, delay: 500_000, attempts: 5, backoff: { type: 'fixed', delay: 2000 }, timeout: 30_000,
    removeOnComplete: true, removeOnFail: true, lifo: true, durable: true, stackTraceLimit: 3, keepLogs: 2 ** 40,
    sizeLimit: 1000, deduplication: { id: unique('key'), ttl: 5000 }, group: { id: 'tenant', priority: 2 },
  });
  const job: any = plain(await queue.getJob(id));
  expect(job.opts).toMatchObject({
    attempts: 5, backoff: { type: 'fixed', delay: 2000 }, timeout: 30_000, removeOnComplete: true, removeOnFail: true,
    lifo: true, durable: true, stackTraceLimit: 3, keepLogs: 2 ** 40, sizeLimit: 1000, group: { id: 'tenant' }, priority: 2,
  });
  expect([job.id, await job.getState(), job.delay]).toEqual([id, 'delayed', 500_000]);
});

test('an id of one\'s own is added once', async () => {
  const queue = newQueue();
  const jobId = unique('own');
  const first = await queue.add('a', { n: 1 }, { jobId });
  const second = await queue.add('a', { n: 2 }, { jobId });
  expect([first.id, second.id, (await queue.getJob(jobId))!.data, await queue.countAsync()]).toEqual([jobId, jobId, { n: 1 }, 1]);
});

test('bulk', async () => {
  const queue = newQueue();
  const jobs = await queue.addBulk(
    Array.from({ length: 1000 }, (_, n) => ({ name: `n${n}`, data: n, opts: n % 2 ? { priority: 1 } : { delay: 60_000 } })),
  );
  expect(new Set(jobs.map((job) => job.id)).size).toBe(1000);
  expect(plain(await queue.getJobCountsAsync())).toMatchObject({ waiting: 0, prioritized: 500, delayed: 500, active: 0 });
  expect((await queue.getJobsAsync({ start: 0, end: -1 })).length).toBe(1000);
  expect(names(await queue.getJobsAsync({ start: 10, end: 12 }))).toEqual(['n10', 'n11']);
  expect(names(await queue.getJobsAsync({ start: 0, end: 2, asc: false }))).toEqual(['n999', 'n998']);
  expect(names(await queue.getPrioritized(0, 1))).toEqual(['n1']);
  expect(await queue.getCountsPerPriorityAsync()).toEqual({ 0: 500, 1: 500 });
});

test('concurrent adds are batched and none is lost', async () => {
  const queue = newQueue();
  const jobs = await Promise.all(Array.from({ length: 500 }, (_, n) => queue.add('n', { n })));
  expect(new Set(jobs.map((job) => job.id)).size).toBe(500);
  expect(await queue.countAsync()).toBe(500);
});

test('deduplication: drop, replace, extend, remove', async () => {
  const queue = newQueue();
  const id = unique('key');
  const first = await queue.add('a', { n: 1 }, { deduplication: { id, ttl: 60_000 } });
  expect((await queue.add('a', { n: 2 }, { deduplication: { id, ttl: 60_000 } })).id).toBe(first.id);
  const third = await queue.add('a', { n: 3 }, { deduplication: { id, ttl: 60_000, replace: true } });
  expect([third.id === first.id, await queue.getJobState(first.id)]).toEqual([false, 'unknown']);
  expect((await queue.add('a', {}, { deduplication: { id, ttl: 60_000, extend: true } })).id).toBe(third.id);
  expect(await queue.getDeduplicationJobId(id)).toBe(third.id);
  expect(await queue.removeDeduplicationKey(id)).toBe(1);
  expect((await queue.add('a', {}, { deduplication: { id } })).id).not.toBe(third.id);
});

test('a key ends with its time', async () => {
  const queue = newQueue();
  const id = unique('key');
  const first = await queue.add('a', {}, { deduplication: { id, ttl: 150 } });
  await until('the key is free', async () => (await queue.add('a', {}, { deduplication: { id, ttl: 150 } })).id !== first.id);
});

test('pause, resume, drain, obliterate', async () => {
  const queue = newQueue();
  await queue.addBulk([{ name: 'a', data: {} }, { name: 'b', data: {}, opts: { delay: 60_000 } }]);
  await queue.pauseAsync();
  expect([await queue.isPausedAsync(), (await queue.getJobCountsAsync()).paused]).toEqual([true, 1]);
  await queue.resumeAsync();
  expect([await queue.isPausedAsync(), (await queue.getJobCountsAsync()).waiting]).toEqual([false, 1]);
  expect(await queue.drainAsync()).toBe(2);
  await queue.add('c', {});
  await queue.obliterateAsync();
  expect(await queue.getJobCountsAsync()).toMatchObject({ waiting: 0, delayed: 0, completed: 0, failed: 0 });
});

test('a job may be changed while it waits', async () => {
  const queue = newQueue();
  const job = await queue.add('a', { n: 1 }, { delay: 60_000 });
  await job.updateData({ n: 2 });
  await job.changePriority({ priority: 7 });
  await job.promote();
  const changed: any = await queue.getJob(job.id);
  expect([changed.data, changed.priority, await changed.getState()]).toEqual([{ n: 2 }, 7, 'prioritized']);
  await job.changeDelay(60_000);
  expect(await job.isDelayed()).toBe(true);
  expect(await queue.promoteJobs({ count: 5 })).toBe(1);
  await job.remove();
  expect([await job.getState(), await queue.getJob(job.id)]).toEqual(['unknown', null]);
});

test('logs of a job', async () => {
  const queue = newQueue();
  const job = await queue.add('a', {});
  for (const line of ['one', 'two', 'three']) await queue.addJobLog(job.id, line);
  expect(plain(await queue.getJobLogs(job.id))).toEqual({ logs: ['[info] one', '[info] two', '[info] three'], count: 3 });
  await queue.clearJobLogs(job.id, 1);
  expect((await queue.getJobLogs(job.id)).logs).toEqual(['[info] three']);
});

test('clean removes finished jobs by age', async () => {
  const queue = newQueue();
  await queue.addBulk([{ name: 'a', data: {} }, { name: 'b', data: {} }]);
  expect(await queue.cleanAsync(60_000, 100, 'waiting')).toEqual([]);
  await sleep(5); // older than a grace of 0 ms
  expect((await queue.cleanAsync(0, 1, 'waiting')).length).toBe(1);
  expect(await queue.countAsync()).toBe(1);
});

test('nine megabytes are stored, eleven are refused', async () => {
  const queue = newQueue();
  const text = 'z'.repeat(9 * 1024 * 1024);
  const { id } = await queue.add('large', { text });
  expect((await queue.getJob(id))!.data.text.length).toBe(text.length);
  expect(queue.add('larger', { text: 'z'.repeat(11 * 1024 * 1024) })).rejects.toThrow('too large');
  expect(await queue.countAsync()).toBe(1);
});

test.each([
  [{ priority: 1.5 }, 'priority must be an integer'],
  [{ priority: 2_000_000_000 }, 'priority must be at most 1000000'],
  [{ delay: -1 }, 'delay must be at least 0'],
  [{ attempts: 0 }, 'maxAttempts must be at least 1'],
  [{ timeout: -5 }, 'timeout must be at least 0'],
  [{ repeat: { pattern: 'nonsense' } }, 'Invalid repeat pattern'],
])('%p is refused with a reason', async (options: any, reason) => {
  const queue = newQueue();
  expect(queue.add('x', {}, options)).rejects.toThrow(reason);
  expect(await queue.countAsync()).toBe(0);
});

test('names that no queue or job can have', async () => {
  expect(newQueue('bad name!').add('x', {})).rejects.toThrow('invalid characters');
  expect(newQueue().add('', {})).rejects.toThrow('Job name must be');
});

test('what is not there', async () => {
  const queue = newQueue();
  expect([await queue.getJob('none'), await queue.getJobState('none')]).toEqual([null, 'unknown']);
  expect(queue.updateJobData('none', {})).rejects.toThrow('Job not found');
});

test('prefixes keep queues apart', async () => {
  const name = unique();
  const [one, two] = [newQueue(name, { prefixKey: 'one:' }), newQueue(name, { prefixKey: 'two:' })];
  await one.add('a', {});
  expect([one.name, await one.countAsync(), await two.countAsync()]).toEqual([name, 1, 0]);
});

test('adds one at a time, without batches', async () => {
  const queue = newQueue(unique(), { autoBatch: { enabled: false } });
  const job = await queue.add('single', { a: 1 }, { priority: 1 });
  expect((await queue.getJob(job.id))!.data).toEqual({ a: 1 });
});

test('a queue that was closed does not hold the process', async () => {
  const queue = new Queue(unique(), { connection });
  await queue.add('a', {});
  await queue.disconnect();
});
