// Pools, groups of queues, simple mode, forwarding, workflows, handlers in a process of their own.
import { Bunqueue, QueueGroup, SandboxedWorker, TcpConnectionPool } from 'bunqueue/client';
import { Engine, Workflow } from 'bunqueue/workflow';
import { expect, test } from 'bun:test';
import { tmpdir } from 'node:os';
import { connection, keep, newQueue, plain, reaches, unique, until } from './support';

test('a pool of connections', async () => {
  const pool = new TcpConnectionPool({ ...connection, poolSize: 3 });
  await pool.connect();
  expect([pool.isConnected(), pool.getConnectedCount(), pool.getPoolSize()]).toEqual([true, 3, 3]);
  const replies: any[] = await pool.sendParallel([{ cmd: 'Ping' }, { cmd: 'GetState', id: 'x' }, { cmd: 'Nonsense' }]);
  expect(replies.map((reply) => reply.ok)).toEqual([true, true, false]);
  expect(replies[2].error).toBe('Unknown command: Nonsense');
  const health = plain(pool.getHealth());
  expect([health.healthy, health.connectedCount, health.totalErrors]).toEqual([true, 3, 0]);
  pool.close();
  expect(pool.isClosed()).toBe(true);
});

test('a thousand adds over five connections', async () => {
  const queue = newQueue(unique(), { connection: { ...connection, poolSize: 5 }, autoBatch: { enabled: false } });
  const jobs = await Promise.all(Array.from({ length: 1000 }, (_, n) => queue.add('n', { n })));
  expect([new Set(jobs.map((job) => job.id)).size, await queue.countAsync()]).toEqual([1000, 1000]);
});

test('a group of queues', async () => {
  const group = new QueueGroup(unique('space'));
  const [one, two] = [keep(group.getQueue('one', { connection })), keep(group.getQueue('two', { connection }))];
  await one.add('x', {});
  await two.add('y', {});
  const ran: string[] = [];
  keep(group.getWorker('one', (job: any) => { ran.push(job.name); }, { connection }));
  await until('it ran', () => ran.length === 1);
  await group.pauseAllAsync();
  expect([await one.isPausedAsync(), await two.isPausedAsync()]).toEqual([true, true]);
  await group.resumeAllAsync();
  expect([(await group.listQueuesAsync()).sort(), await group.drainAllAsync()]).toEqual([['one', 'two'], 1]);
  await group.obliterateAllAsync();
});

test('simple mode', async () => {
  const seen: any[] = [];
  const app = keep(new Bunqueue<any, any>(unique('app'), {
    connection, concurrency: 3, defaultJobOptions: { attempts: 1 }, dlq: { maxEntries: 7 },
    routes: { good: (job: any) => ({ got: job.data }), bad: () => { throw new Error('no'); }, next: (job: any) => `after ${job.data.x}` },
  }));
  app.trigger({ on: 'good', create: 'next', data: (result: any) => ({ x: result.got.x }) });
  app.on('completed', (job, result) => seen.push([job.name, result]));
  app.on('failed', (job, error) => seen.push([job.name, error.message]));
  await app.add('good', { x: 5 });
  await app.add('bad', {});
  await until('all ran', () => seen.length === 3);
  expect(seen.sort()).toEqual([['bad', 'no'], ['good', { got: { x: 5 } }], ['next', 'after 5']]);
  const id = unique('cron');
  await app.cron(id, '0 0 1 1 *', { a: 1 });
  expect((await app.listCrons()).map((cron) => cron.id)).toEqual([id]);
  expect([await app.removeCron(id), (await app.getDlqConfigAsync()).maxEntries, (await app.getDlqAsync())[0].error]).toEqual([true, 7, 'no']);
});

test('forwarding to another queue', async () => {
  const [source, target] = [newQueue(unique('from')), newQueue(unique('to'))];
  const forwarded: any[] = [];
  const forwarder = keep(source.forward({ to: connection, queue: target.name, durable: true }));
  forwarder.on('forwarded', (info) => forwarded.push(info));
  await source.add('x', { a: 1 }, { priority: 3 });
  await until('it arrived', () => forwarded.length === 1);
  const job: any = await target.getJob(forwarded[0].remoteId);
  expect([job.name, job.data, job.priority]).toEqual(['x', { a: 1 }, 3]);
});

test('a workflow with a signal, and one that is rolled back', async () => {
  const log: string[] = [];
  const engine: any = keep(new Engine({ connection } as any));
  engine.register(new Workflow('order')
    .step('charge', async () => { log.push('charge'); return { tx: 7 }; }, { compensate: async () => { log.push('refund'); } })
    .waitFor('approve', { timeout: 10_000 })
    .step('ship', async (context: any) => { log.push(`ship ${context.steps.charge.tx}`); }));
  engine.register(new Workflow('broken')
    .step('book', async () => { log.push('book'); }, { compensate: async () => { log.push('cancel'); } })
    .step('fail', async () => { throw new Error('no'); }, { retry: 1 } as any));
  const run = await engine.start('order', { id: 1 });
  await until('it waits', async () => (await engine.getExecution(run.id)).state === 'waiting');
  await engine.signal(run.id, 'approve', { ok: true });
  await until('it is complete', async () => (await engine.getExecution(run.id)).state === 'completed');
  const broken = await engine.start('broken', {});
  await until('it is rolled back', async () => (await engine.getExecution(broken.id)).state === 'failed');
  expect(log).toEqual(['charge', 'ship 7', 'book', 'cancel']);
}, 30_000);

test('a handler in a process of its own', async () => {
  const processor = `${tmpdir()}/handler-${process.pid}.ts`;
  await Bun.write(processor, 'export default async (job: any) => ({ got: job.data });');
  const queue = newQueue();
  const worker: any = new SandboxedWorker(queue.name, { processor, connection, concurrency: 1 } as any);
  await worker.start();
  const job = await queue.add('s', { a: 1 });
  await reaches(job, 'completed');
  expect((await queue.getJob(job.id))!.returnvalue).toEqual({ got: { a: 1 } });
  await worker.stop();
});
