import { expect, test } from 'bun:test';
import { newQueue, plain, sleep, unique, until, work } from './support';

test('a schedule: set, change, list, remove', async () => {
  const queue = newQueue();
  const [daily, hourly] = [unique('daily'), unique('hourly')];
  const made: any = plain(await queue.upsertJobScheduler(
    daily, { pattern: '0 3 * * *', timezone: 'Europe/Berlin', limit: 10 }, { name: 'night', data: { a: 1 }, opts: { priority: 5 } },
  ));
  expect([made.id, made.name, made.pattern, made.limit]).toEqual([daily, 'night', '0 3 * * *', 10]);
  const hour = Number(new Intl.DateTimeFormat('en', { timeZone: 'Europe/Berlin', hour: 'numeric', hourCycle: 'h23' }).format(made.next));
  expect([hour, made.next > Date.now(), made.next < Date.now() + 26 * 3_600_000]).toEqual([3, true, true]);
  await queue.upsertJobScheduler(hourly, { every: 3_600_000 });
  expect(plain(await queue.getJobSchedulers()).map((entry: any) => entry.id).sort()).toEqual([daily, hourly]);
  await queue.upsertJobScheduler(daily, { pattern: '30 4 * * *' });
  expect(((await queue.getJobScheduler(daily)) as any).pattern).toBe('30 4 * * *');
  expect([await queue.removeJobScheduler(daily), await queue.removeJobScheduler(daily)]).toEqual([true, false]);
  expect([await queue.getJobScheduler(daily), await queue.getJobSchedulersCount()]).toEqual([null, 1]);
});

test('its jobs have the options of the template, and no more of them than its limit', async () => {
  const queue = newQueue();
  const jobs: any[] = [];
  work(queue.name, (job) => { jobs.push(plain(job)); });
  await queue.upsertJobScheduler(unique('fast'), { every: 150, limit: 3 }, { name: 'tick', data: { k: 1 }, opts: { attempts: 4, priority: 2 } });
  await until('three runs', () => jobs.length === 3);
  await sleep(500); // in which another would come
  expect(jobs.map((job) => [job.name, job.data, job.opts.attempts, job.priority])).toEqual(Array(3).fill(['tick', { k: 1 }, 4, 2]));
});

test('at once, by seconds, and only with a worker', async () => {
  const queue = newQueue();
  const ran: string[] = [];
  await queue.upsertJobScheduler(unique('idle'), { every: 100, skipIfNoWorker: true }, { name: 'idle' });
  await sleep(400); // in which it would have run
  expect(await queue.countAsync()).toBe(0);
  work(queue.name, (job) => { ran.push(job.name); });
  await queue.upsertJobScheduler(unique('now'), { every: 3_600_000, immediately: true }, { name: 'now' });
  await queue.upsertJobScheduler(unique('second'), { pattern: '* * * * * *' }, { name: 'second' });
  await until('all ran', () => ['idle', 'now', 'second'].every((name) => ran.includes(name)));
  expect(ran.filter((name) => name === 'now').length).toBe(1);
});

test.each([
  [{ pattern: 'nonsense' }], [{ pattern: '* * * * *', timezone: 'No/Where' }], [{}], [{ every: -5 }],
])('%p is no schedule', async (repeat) => {
  const queue = newQueue();
  expect(await queue.upsertJobScheduler(unique('wrong'), repeat)).toBeNull(); // the client keeps the reason to itself
  expect(await queue.getJobSchedulersCount()).toBe(0);
});

test('prefixes keep schedules apart', async () => {
  const [name, id] = [unique(), unique('same')];
  const [one, two] = [newQueue(name, { prefixKey: 'one:' }), newQueue(name, { prefixKey: 'two:' })];
  await one.upsertJobScheduler(id, { every: 3_600_000 });
  await two.upsertJobScheduler(id, { every: 7_200_000 });
  expect([((await one.getJobScheduler(id)) as any).every, ((await two.getJobScheduler(id)) as any).every]).toEqual([3_600_000, 7_200_000]);
});

test('a job that repeats itself, by interval and by pattern', async () => {
  const queue = newQueue();
  const at: Record<string, number[]> = { every: [], pattern: [] };
  work(queue.name, (job) => { at[job.name].push(Date.now()); });
  await queue.add('every', {}, { repeat: { every: 200, limit: 2 } });
  await queue.add('pattern', {}, { repeat: { pattern: '* * * * * *', limit: 1 } });
  await until('all ran', () => at.every.length === 3 && at.pattern.length === 2);
  expect(at.every[1] - at.every[0]).toBeGreaterThanOrEqual(195);
  expect(at.pattern[1] % 1000).toBeLessThan(500); // at the full second, or soon after
});

test('other data for the runs to come', async () => {
  const queue = newQueue();
  const seen: number[] = [];
  work(queue.name, (job) => { seen.push(job.data.version); });
  const job = await queue.add('sync', { version: 1 }, { repeat: { every: 300, limit: 2 } });
  await until('the first run is over', async () => (await job.getState()) === 'completed');
  await job.updateData({ version: 2 });
  await until('all ran', () => seen.length === 3);
  expect(seen).toEqual([1, 2, 2]);
});
