import { DelayedError, UnrecoverableError, Worker } from 'bunqueue/client';
import { expect, test } from 'bun:test';
import { connection, listen, names, newQueue, plain, reaches, sleep, unique, until, work } from './support';

test('results of every kind', async () => {
  const queue = newQueue();
  const results: Record<string, unknown> = { map: { a: [1] }, text: 'done', number: 42, list: [1, null], nothing: null };
  work(queue.name, (job) => results[job.name], { concurrency: 3 });
  for (const name of [...Object.keys(results), 'undefined']) {
    const job = await queue.add(name, {});
    expect(await job.waitUntilFinished(null, 10_000)).toEqual(results[name]);
    const done: any = plain(await queue.getJob(job.id));
    expect([await done.getState(), done.returnvalue, done.progress]).toEqual(['completed', results[name], 100]);
    expect(done.finishedOn).toBeGreaterThanOrEqual(done.processedOn);
  }
});

test('progress, logs, events of the worker', async () => {
  const queue = newQueue();
  const seen: any[] = [];
  const worker: any = work(queue.name, async (job) => {
    await job.updateProgress(50, 'half');
    await job.log('a line');
    expect([await job.getState(), await job.isActive()]).toEqual(['active', true]);
    return 'ok';
  });
  for (const event of ['active', 'completed', 'progress', 'log']) {
    worker.on(event, (job: any, more: any) => seen.push([event, job.name, more]));
  }
  const job = await queue.add('run', {});
  await until('completed', () => seen.some(([event]) => event === 'completed'));
  expect(seen).toEqual([['active', 'run', undefined], ['progress', 'run', 50], ['log', 'run', 'a line'], ['completed', 'run', 'ok']]);
  expect((await queue.getJobLogs(job.id)).logs).toEqual(['[info] a line']);
});

test('higher priorities first, then first in first out', async () => {
  const queue = newQueue();
  const order: string[] = [];
  await queue.pauseAsync();
  for (const [name, priority] of [['low', 0], ['a', 5], ['b', 5], ['top', 9]] as const) await queue.add(name, {}, { priority });
  await queue.add('last in', {}, { priority: 5, lifo: true });
  work(queue.name, (job) => { order.push(job.name); });
  await queue.resumeAsync();
  await until('all ran', () => order.length === 5);
  expect(order).toEqual(['top', 'last in', 'a', 'b', 'low']);
});

test('a delayed job runs when it is due', async () => {
  const queue = newQueue();
  let ran = 0;
  work(queue.name, () => { ran = Date.now(); }, { pollTimeout: 5000 });
  const added = Date.now();
  await queue.add('later', {}, { delay: 400 });
  await until('it ran', () => ran);
  expect(ran - added).toBeGreaterThanOrEqual(390);
});

test('retries with backoff, then success', async () => {
  const queue = newQueue();
  const at: number[] = [];
  work(queue.name, () => { at.push(Date.now()); if (at.length < 3) throw new Error(`no ${at.length}`); return 'at last'; });
  const job = await queue.add('flaky', {}, { attempts: 5, backoff: { type: 'fixed', delay: 200 } });
  expect(await job.waitUntilFinished(null, 10_000)).toBe('at last');
  const done: any = await queue.getJob(job.id);
  expect([at.length, done.attemptsMade, done.failedReason]).toEqual([3, 2, 'no 2']);
  expect(at[1] - at[0]).toBeGreaterThanOrEqual(155); // 80 % of the delay is the least
});

test('the dead letter queue: entries, retry, purge', async () => {
  const queue = newQueue();
  let broken = true;
  const worker: any = work(queue.name, (job) => { if (broken) throw new Error(`boom ${job.data.n}`); return 'mended'; });
  const failed: any[] = [];
  worker.on('failed', (job: any, error: Error) => failed.push([job.name, error.message]));
  const jobs = await queue.addBulk([1, 2, 3].map((n) => ({ name: 'job', data: { n }, opts: { attempts: 2, backoff: 10 } })));
  await until('all failed', async () => (await queue.getFailedCount()) === 3);
  await until('the worker told', () => failed.length === 6);
  const entries: any[] = plain(await queue.getDlqAsync());
  expect(entries.map((entry) => [entry.reason, entry.error]).sort()).toEqual([1, 2, 3].map((n) => ['max_attempts_exceeded', `boom ${n}`]));
  for (const entry of entries) {
    expect(entry.attempts.map((past: any) => past.attempt)).toEqual([1, 2]);
    expect(entry.expiresAt - entry.enteredAt).toBe(7 * 86_400_000);
    expect(entry.job.stacktrace[0]).toBe(`Error: ${entry.error}`);
  }
  expect(plain(await queue.getDlqStatsAsync())).toMatchObject({ total: 3, byReason: { max_attempts_exceeded: 3 } });
  expect(names(await queue.getFailedAsync(0, 10))).toEqual(['job', 'job', 'job']);
  broken = false;
  expect(await queue.retryDlqAsync(jobs[0].id)).toBe(1);
  await reaches(jobs[0], 'completed');
  await jobs[1].retry();
  await reaches(jobs[1], 'completed');
  expect(await queue.removeDlqJob(jobs[2].id)).toBe(true);
  expect([await queue.removeDlqJob(jobs[2].id), await queue.purgeDlqAsync(), await queue.getFailedCount()]).toEqual([false, 0, 0]);
  expect(await queue.retryCompletedAsync(jobs[0].id)).toBe(1);
  await reaches(jobs[0], 'completed');
});

test('configuration of dead letters and stalls', async () => {
  const queue = newQueue();
  await queue.setDlqConfigAsync({ autoRetry: true, maxEntries: 5, maxAge: null });
  expect(plain(await queue.getDlqConfigAsync())).toMatchObject({ autoRetry: true, maxEntries: 5, maxAge: null, maxAutoRetries: 3 });
  await queue.setStallConfigAsync({ stallInterval: 12_345 });
  expect(plain(await queue.getStallConfigAsync())).toMatchObject({ enabled: true, stallInterval: 12_345, maxStalls: 3 });
});

test('an error that forbids retries', async () => {
  const queue = newQueue();
  let runs = 0;
  work(queue.name, () => { runs++; throw new UnrecoverableError('never again'); });
  const job = await queue.add('x', {}, { attempts: 9 });
  await reaches(job, 'failed');
  expect([runs, (await queue.getJob(job.id))!.failedReason]).toEqual([1, 'never again']);
});

test('a job that takes too long', async () => {
  const queue = newQueue();
  let aborted = false;
  const events: any[] = [];
  const worker: any = work(queue.name, async (_, { signal }) => {
    signal.addEventListener('abort', () => { aborted = true; });
    await until('it is aborted', () => aborted);
    return 'too late';
  });
  worker.on('completed', () => events.push('completed'));
  worker.on('error', (error: Error) => events.push(error.message));
  const job = await queue.add('slow', {}, { timeout: 100, attempts: 1 });
  await reaches(job, 'failed');
  await until('the signal', () => aborted);
  await sleep(100); // a wrong event would come now
  expect([(await queue.getDlqAsync())[0].reason, await job.getState(), events]).toEqual(['timeout', 'failed', []]);
});

test('jobs that leave nothing', async () => {
  const queue = newQueue();
  const events = await listen(queue.name);
  const gone: string[] = [];
  events.on('completed', ({ jobId }) => gone.push(jobId));
  events.on('failed', ({ jobId }) => gone.push(jobId));
  work(queue.name, (job) => { if (job.name === 'bad') throw new UnrecoverableError('no'); });
  const good = await queue.add('good', {}, { removeOnComplete: true });
  const bad = await queue.add('bad', {}, { removeOnFail: true });
  await until('both ran', () => gone.length === 2);
  expect([await good.getState(), await bad.getState(), await queue.getDlqAsync()]).toEqual(['unknown', 'unknown', []]);
});

test('a handler moves its job', async () => {
  const queue = newQueue();
  const runs: Record<string, number> = {};
  work(queue.name, async (job) => {
    const run = (runs[job.name] = (runs[job.name] ?? 0) + 1);
    if (job.name === 'delayed' && run === 1) return void (await job.moveToDelayed(Date.now() + 100, job.token));
    if (job.name === 'waiting' && run === 1) return void (await job.moveToWait(job.token));
    if (job.name === 'error' && run === 1) throw new DelayedError('later', 100) as Error;
    if (job.name === 'completed') return void (await job.moveToCompleted('by hand', job.token));
    if (job.name === 'failed') return void (await job.moveToFailed(new Error('by hand'), job.token));
    if (job.name === 'extended') return await job.extendLock(job.token, 60_000);
    return `run ${run}`;
  });
  const expected = { delayed: 'run 2', waiting: 'run 2', error: 'run 2', completed: 'by hand', extended: 60_000 };
  for (const [name, result] of Object.entries(expected)) {
    const job = await queue.add(name, {}, { attempts: 3 });
    await reaches(job, 'completed');
    const done: any = await queue.getJob(job.id);
    expect([name, done.returnvalue]).toEqual([name, result]);
  }
  const job = await queue.add('failed', {}, { attempts: 1 });
  await reaches(job, 'failed');
  expect((await queue.getJob(job.id))!.failedReason).toBe('by hand');
});

test('cancelling what runs', async () => {
  const queue = newQueue();
  const worker = work(queue.name, (_, { signal }) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('stopped')))));
  const job = await queue.add('endless', {}, { attempts: 1 });
  await reaches(job, 'active');
  expect(worker.cancelJob(job.id, 'enough')).toBe(true);
  await reaches(job, 'failed');
  expect((await queue.getJob(job.id))!.failedReason).toBe('stopped');
});

test('a paused queue and a paused worker take nothing', async () => {
  const queue = newQueue();
  const worker = work(queue.name, () => 1);
  await queue.pauseAsync();
  const one = await queue.add('one', {});
  await sleep(200); // in which it would run
  expect(await one.getState()).toBe('waiting');
  worker.pause();
  await queue.resumeAsync();
  await sleep(200); // in which it would run
  expect(await one.getState()).toBe('waiting');
  worker.resume();
  await reaches(one, 'completed');
});

test('closing a worker: what runs is finished, with force it is given back', async () => {
  const queue = newQueue();
  // It still runs when the worker closes.
  const slow = new Worker(queue.name, async () => { await sleep(300); return 'whole'; }, { connection });
  const job = await queue.add('slow', {});
  await reaches(job, 'active');
  await slow.close();
  await reaches(job, 'completed');
  const stuck = new Worker(queue.name, () => new Promise(() => undefined), { connection });
  const other = await queue.add('stuck', {});
  await reaches(other, 'active');
  await stuck.close(true);
  await reaches(other, 'waiting');
});

test('a job whose lock runs out goes to another worker', async () => {
  const queue = newQueue();
  const events = await listen(queue.name);
  const stalled: string[] = [];
  events.on('stalled', ({ jobId }) => stalled.push(jobId));
  let runs = 0;
  const hung: (() => void)[] = [];
  work(queue.name, () => (++runs === 1 ? new Promise<void>((done) => hung.push(done)) : `run ${runs}`), {
    lockDuration: 300, heartbeatInterval: 0, skipLockRenewal: true, concurrency: 2,
  });
  const job = await queue.add('lost', {});
  await reaches(job, 'completed');
  const done: any = await queue.getJob(job.id);
  expect([done.returnvalue, done.attemptsMade, done.stalledCounter, stalled]).toEqual(['run 2', 1, 1, [job.id]]);
  hung.forEach((finish) => finish());
}, 30_000);

test('locks are renewed while a handler works', async () => {
  const queue = newQueue();
  let runs = 0;
  // Several locks long.
  work(queue.name, async () => { runs++; await sleep(7000); return 'once'; }, { lockDuration: 1500, heartbeatInterval: 300, concurrency: 2 });
  const job = await queue.add('long', {});
  expect(await job.waitUntilFinished(null, 15_000)).toBe('once');
  expect(runs).toBe(1);
}, 30_000);

test('pulling by hand', async () => {
  const queue = newQueue();
  const worker = work(queue.name, () => 'by hand', { autorun: false });
  const job = await queue.add('manual', { k: 1 });
  const pulled: any = plain(await worker.getNextJob());
  expect([pulled.id, pulled.data]).toEqual([job.id, { k: 1 }]);
  await worker.processJobManually(pulled);
  expect(await job.getState()).toBe('completed');
});

test('batches', async () => {
  const queue = newQueue();
  const sizes: number[] = [];
  await queue.addBulk(Array.from({ length: 25 }, (_, n) => ({ name: 'b', data: { n }, opts: { attempts: 1 } })));
  work(queue.name, (leader) => {
    const batch = leader.getBatch();
    sizes.push(batch.length);
    for (const job of batch) if (job.data.n === 3) job.setAsFailed(new Error('three'));
  }, { batch: { size: 10, minSize: 5, timeout: 300 } });
  await until('all are done', async () => (await queue.getCompletedCount()) === 24 && (await queue.getFailedCount()) === 1);
  expect(sizes).toEqual([10, 10, 5]);
});

test('who works', async () => {
  const queue = newQueue();
  const worker = work(queue.name, () => 1, { concurrency: 3 });
  await until('it is registered', async () => (await queue.getWorkersCount()) === 1);
  const [info]: any[] = plain(await queue.getWorkers());
  expect([info.queues, info.concurrency, info.pid, info.status]).toEqual([[queue.name], 3, process.pid, 'active']);
  await worker.close();
  await until('it is gone', async () => (await queue.getWorkersCount()) === 0);
});

test('many workers share a queue and run every job once', async () => {
  const name = unique();
  const runs = new Map<number, number>();
  const shares = [0, 0, 0, 0];
  shares.forEach((_, number) => work(name, (job) => { shares[number]++; runs.set(job.data, (runs.get(job.data) ?? 0) + 1); }, { concurrency: 5 }));
  const queue = newQueue(name);
  await queue.addBulk(Array.from({ length: 2000 }, (_, n) => ({ name: 'n', data: n })));
  await until('all are done', async () => (await queue.getCompletedCount()) === 2000, 30_000);
  expect([runs.size, Math.max(...runs.values()), Math.min(...shares) > 0]).toEqual([2000, 1, true]);
}, 40_000);
