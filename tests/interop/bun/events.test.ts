import { UnrecoverableError } from 'bunqueue/client';
import { expect, test } from 'bun:test';
import { listen, newQueue, plain, reaches, unique, until, work } from './support';

async function record(name: string) {
  const events: any = await listen(name);
  const seen: any[] = [];
  const kinds = ['waiting', 'active', 'completed', 'failed', 'progress', 'removed', 'delayed', 'duplicated', 'retried', 'paused', 'resumed'];
  for (const kind of kinds) events.on(kind, (event: any) => seen.push([kind, plain(event)]));
  return { events, seen, of: (id: string) => seen.filter(([, event]) => event.jobId === id).map(([kind]) => kind) };
}

test('the life of a job, told from another connection', async () => {
  const queue = newQueue();
  const { seen, of } = await record(queue.name);
  work(queue.name, async (job) => { await job.updateProgress(40); return { sent: true }; });
  const job = await queue.add('a', {});
  await until('it is over', () => of(job.id).includes('completed'));
  expect(seen).toEqual([
    ['waiting', { jobId: job.id }], ['active', { jobId: job.id }],
    ['progress', { jobId: job.id, data: 40 }],
    ['completed', { jobId: job.id, returnvalue: { sent: true } }],
  ]);
});

test('failures, retries, removals, duplicates, pauses', async () => {
  const queue = newQueue();
  const { seen, of } = await record(queue.name);
  await queue.pauseAsync();
  await queue.resumeAsync();
  const removed = await queue.add('removed', {}, { delay: 60_000, deduplication: { id: 'k' } });
  await queue.add('again', {}, { deduplication: { id: 'k' } });
  await removed.remove();
  let runs = 0;
  work(queue.name, () => { throw runs++ ? new UnrecoverableError('for good') : new Error('once'); });
  const job = await queue.add('fails', { n: 1 }, { attempts: 3, backoff: 10 });
  await reaches(job, 'failed');
  await until('all was told', () => of(job.id).filter((kind) => kind === 'failed').length === 2);
  expect(of(removed.id)).toEqual(['waiting', 'duplicated', 'removed']);
  expect(of(job.id)).toEqual(['waiting', 'active', 'failed', 'retried', 'active', 'failed']);
  expect(seen.filter(([kind]) => ['paused', 'resumed'].includes(kind)).map(([kind]) => kind)).toEqual(['paused', 'resumed']);
  expect(seen.findLast(([kind]) => kind === 'failed')[1]).toMatchObject({ failedReason: 'for good', data: { n: 1 } });
});

test('waiting for a job to finish', async () => {
  const queue = newQueue();
  const events = await listen(queue.name);
  work(queue.name, (job) => { if (job.name === 'bad') throw new UnrecoverableError('no good'); return job.name; }, { concurrency: 5 });
  const jobs = await Promise.all(['a', 'b', 'c'].map((name) => queue.add(name, {})));
  expect(await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 10_000)))).toEqual(['a', 'b', 'c']);
  expect((await queue.add('bad', {})).waitUntilFinished(events, 10_000)).rejects.toThrow();
  const never = await queue.add('never', {}, { delay: 60_000 });
  expect(never.waitUntilFinished(events, 100)).rejects.toThrow('timed out');
});

test('events of one queue only, and none after closing', async () => {
  const [one, two] = [newQueue(unique()), newQueue(unique())];
  const first = await record(one.name);
  const second = await record(two.name);
  await two.add('x', {});
  await until('it was told', () => second.seen.length === 1);
  expect(first.seen).toEqual([]);
  second.events.close();
  await two.add('y', {});
  await one.add('z', {});
  await until('it was told', () => first.seen.length === 1);
  expect(second.seen.length).toBe(1);
});

test('how many completed and failed', async () => {
  const queue = newQueue();
  work(queue.name, (job) => { if (job.data === 1) throw new UnrecoverableError('no'); });
  await queue.addBulk([1, 2, 3].map((data) => ({ name: 'm', data })));
  await until('all are done', async () => (await queue.getCompletedCount()) === 2 && (await queue.getFailedCount()) === 1);
  const [completed, failed]: any[] = plain([await queue.getMetrics('completed'), await queue.getMetrics('failed')]);
  expect([completed.meta.count, failed.meta.count]).toEqual([2, 1]);
  expect(await queue.trimEvents(1)).toBeGreaterThan(5);
});
