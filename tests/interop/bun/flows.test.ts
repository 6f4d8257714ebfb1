import { UnrecoverableError } from 'bunqueue/client';
import { expect, test } from 'bun:test';
import { names, newFlows, newQueue, plain, reaches, sleep, unique, until, work } from './support';

/** Two queues with workers: a job named `bad...` fails for good, `parent` tells what its children left. */
function bench() {
  const [a, b] = [newQueue(unique('a')), newQueue(unique('b'))];
  const order: string[] = [];
  const handler = async (job: any) => {
    order.push(job.name);
    if (job.name === 'once' && order.filter((name) => name === 'once').length === 1) throw new UnrecoverableError('once');
    if (job.name.startsWith('bad')) throw new UnrecoverableError(`${job.name} failed`);
    if (job.name === 'slow') await sleep(300); // the parent would begin meanwhile
    if (job.name === 'nothing') return undefined;
    if (job.name !== 'parent') return { from: job.name };
    return {
      values: await job.getChildrenValues(),
      failed: await job.getFailedChildrenValues(),
      ignored: await job.getIgnoredChildrenFailures(),
    };
  };
  return { a, b, order, start: () => [a, b].forEach((queue) => work(queue.name, handler)) };
}

test('a tree over two queues', async () => {
  const { a, b, order, start } = bench();
  const flows = newFlows();
  const { job, children }: any = await flows.add({
    name: 'parent', queueName: a.name, data: { name: 'its own' }, opts: { priority: 2 }, children: [
      { name: 'one', queueName: b.name, data: { n: 1 } },
      { name: 'two', queueName: a.name, children: [{ name: 'grandchild', queueName: b.name }] },
      { name: 'nothing', queueName: b.name },
    ],
  });
  expect([await job.getState(), (await a.getJobCountsAsync())['waiting-children']]).toEqual(['waiting-children', 2]);
  expect(names(await a.getWaitingChildren(0, 10)).sort()).toEqual(['parent', 'two']);
  expect(await job.getDependenciesCount()).toEqual({ processed: 0, unprocessed: 3 });
  const tree: any = plain(await flows.getFlow({ id: job.id, queueName: a.name }));
  expect(tree.children.map((child: any) => child.job.name)).toEqual(['one', 'two', 'nothing']);
  expect(tree.children[1].children[0].job.name).toBe('grandchild');
  start();
  const result: any = plain(await job.waitUntilFinished(null, 10_000));
  const [one, two] = children.map((child: any) => child.job.id);
  expect(result).toEqual({ values: { [`${b.name}:${one}`]: { from: 'one' }, [`${a.name}:${two}`]: { from: 'two' } }, failed: {}, ignored: {} });
  expect([order.indexOf('grandchild') < order.indexOf('two'), order.at(-1)]).toEqual([true, 'parent']);
  const child: any = await b.getJob(one);
  expect([child.parent.id, (await job.getDependencies()).unprocessed]).toEqual([job.id, []]);
});

test.each([
  ['failParentOnFailure', 'failed'],
  ['removeDependencyOnFailure', 'completed'],
  ['ignoreDependencyOnFailure', 'completed'],
  ['continueParentOnFailure', 'completed'],
])('a child that fails: %s', async (policy, state) => {
  const { a, b, start } = bench();
  start();
  const { job, children }: any = await newFlows().add({
    name: 'parent', queueName: a.name, children: [
      { name: 'bad', queueName: b.name, opts: { [policy]: true } },
      { name: 'slow', queueName: b.name },
    ],
  });
  expect(await reaches(job, 'completed', 'failed')).toBe(state);
  const { returnvalue }: any = await a.getJob(job.id);
  const failure = { [`${b.name}:${children[0].job.id}`]: 'bad failed' };
  if (policy === 'ignoreDependencyOnFailure') expect(returnvalue.ignored).toEqual(failure);
  if (policy === 'continueParentOnFailure') expect(returnvalue).toMatchObject({ values: {}, failed: failure });
});

test('without a policy the parent waits, also for a second try', async () => {
  const { a, b, start } = bench();
  start();
  const { job, children }: any = await newFlows().add({
    name: 'parent', queueName: a.name, children: [{ name: 'once', queueName: b.name }],
  });
  await reaches(children[0].job, 'failed');
  expect(await job.getState()).toBe('waiting-children');
  expect(await b.retryDlqAsync(children[0].job.id)).toBe(1);
  await reaches(job, 'completed');
});

test('children that are not wanted any more', async () => {
  const { a, b, start } = bench();
  start();
  const { job, children }: any = await newFlows().add({
    name: 'parent', queueName: a.name, children: [{ name: 'one', queueName: b.name, opts: { delay: 60_000 } }],
  });
  await job.removeUnprocessedChildren();
  await reaches(job, 'completed');
  expect(await children[0].job.getState()).toBe('unknown');
});

test('chains, and many into one', async () => {
  const { a, b, order, start } = bench();
  start();
  const flows = newFlows();
  const step = (name: string, queue: any) => ({ name, queueName: queue.name, data: { name } });
  const { jobIds } = await flows.addChain([step('first', a), step('second', b), step('third', a)]);
  await until('the chain ends', async () => (await a.getJobState(jobIds[2])) === 'completed');
  expect(order).toEqual(['first', 'second', 'third']);
  const { parallelIds, finalId } = await flows.addBulkThen([step('left', a), step('right', b)], step('parent', b));
  await until('all came together', async () => (await b.getJobState(finalId)) === 'completed');
  expect(Object.values((await b.getJob(finalId) as any).returnvalue.values)).toEqual([{ from: 'left' }, { from: 'right' }]);
  expect(await flows.getParentResult(parallelIds[0])).toEqual({ from: 'left' });
  const tree = await flows.addTree({ ...step('root', a), children: [step('leaf', b)] });
  await until('the tree is done', async () => (await b.getJobState(tree.jobIds[1])) === 'completed');
});

test('a child for a job that is there already', async () => {
  const { a, b, start } = bench();
  const parent: any = await a.add('parent', {});
  const child: any = await b.add('late', {}, { parent: { id: parent.id, queue: a.name } });
  expect([await parent.getState(), (await b.getJob(child.id))!.parent]).toEqual(['waiting-children', { id: parent.id, queueQualifiedName: a.name }]);
  start();
  expect((await parent.waitUntilFinished(null, 10_000)).values).toEqual({ [`${b.name}:${child.id}`]: { from: 'late' } });
  expect((await parent.getDependencies()).unprocessed).toEqual([]);
  expect(b.add('orphan', {}, { parent: { id: 'none', queue: a.name } })).rejects.toThrow('Parent job not found: none');
});

test('a job that makes its own children waits for them', async () => {
  const { a, b } = bench();
  const runs: string[] = [];
  work(b.name, (job) => { runs.push(job.name); return 'child'; });
  work(a.name, async (job) => {
    runs.push(job.name);
    if (runs.filter((name) => name === 'maker').length > 1) return Object.values(await job.getChildrenValues());
    await b.add('made', {}, { parent: { id: job.id, queue: a.name } });
    await job.moveToWaitingChildren(job.token);
  });
  const job: any = await a.add('maker', {});
  expect(await job.waitUntilFinished(null, 10_000)).toEqual(['child']);
  expect(runs).toEqual(['maker', 'made', 'maker']);
});

test('all of a flow or nothing', async () => {
  const { a, b } = bench();
  const flows = newFlows();
  const jobId = unique('flow');
  await flows.add({ name: 'x', queueName: a.name, opts: { jobId } });
  expect(flows.add({ name: 'parent', queueName: a.name, children: [
    { name: 'one', queueName: b.name }, { name: 'taken', queueName: b.name, opts: { jobId } },
  ] })).rejects.toThrow('already exists');
  expect(flows.add({ name: 'parent', queueName: a.name, children: [
    { name: 'one', queueName: b.name }, { name: 'wrong', queueName: b.name, opts: { priority: 1e9 } },
  ] })).rejects.toThrow('priority');
  expect([await a.countAsync(), await b.countAsync()]).toEqual([1, 0]);
});

test('several flows at once, with defaults for a queue', async () => {
  const { a, b, start } = bench();
  const flows = newFlows();
  const nodes = await flows.addBulk(Array.from({ length: 10 }, (_, n) => ({
    name: 'parent', queueName: a.name, data: { n }, children: [{ name: 'c', queueName: b.name, data: { n } }],
  })));
  const { children }: any = await flows.add(
    { name: 'parent', queueName: a.name, children: [{ name: 'c', queueName: b.name }] }, { queuesOptions: { [b.name]: { attempts: 9 } } },
  );
  expect((await b.getJob(children[0].job.id))!.opts.attempts).toBe(9);
  start();
  for (const { job } of nodes) await reaches(job, 'completed');
});

test('three hundred children', async () => {
  const { a, b, start } = bench();
  const { job }: any = await newFlows().add({
    name: 'parent', queueName: a.name,
    children: Array.from({ length: 300 }, (_, n) => ({ name: 'c', queueName: n % 2 ? a.name : b.name, data: { n } })),
  });
  start();
  const { values }: any = await job.waitUntilFinished(null, 30_000);
  expect(Object.keys(values).length).toBe(300);
}, 40_000);
