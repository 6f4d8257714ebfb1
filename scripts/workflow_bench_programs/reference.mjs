// The reference's own workflow engine, embedded, on a file: the fastest way that it has.
// bun reference.mjs SCENARIO COUNT FILE
import { Engine, Workflow } from 'bunqueue/workflow';

const [scenario, countText, dataPath] = process.argv.slice(2);
const count = Number(countText);
const say = (found) => console.log(JSON.stringify(found));
const times = [];
let began = 0;
let ended = 0;
let begun = 0;
let wake = () => {};

const stop = () => times.push(performance.now() - began);
const report = () => {
  times.sort((one, other) => one - other);
  const at = (share) => times[Math.round((times.length - 1) * share)];
  say({ p50: at(0.5), p99: at(0.99) });
};

const heard = (event) => {
  if (event.type !== 'workflow:completed') return;
  ended += 1;
  wake();
};

const engine = new Engine({
  embedded: true,
  dataPath,
  concurrency: scenario.startsWith('recovery') ? count : 100,
  onEvent: heard,
});

const until = (what) => new Promise((resolve) => {
  wake = () => { if (what()) resolve(); };
  wake();
});

const chain = (name, many) => {
  let flow = new Workflow(name);
  for (let number = 0; number < many; number += 1) flow = flow.step(`step-${number}`, async () => number);
  return flow;
};

// The time between a step and the next one: what a step costs.
const timedChain = (many) => {
  let flow = new Workflow('timed');
  for (let number = 0; number < many; number += 1) {
    flow = flow.step(`step-${number}`, async () => {
      if (number) stop();
      began = performance.now();
    });
  }
  return flow;
};

engine.register(chain('ten', 10));
engine.register(chain('one', 1));
engine.register(timedChain(200));
engine.register(new Workflow('signalled').waitFor('go').step('after', async () => stop()));
engine.register(new Workflow('sleeps').waitFor('never', { timeout: 86_400_000 }));
engine.register(new Workflow('inFlight').step('first', async () => 1).step('second', async () => {
  begun += 1;
  wake();
  if (scenario !== 'recovery-go') await new Promise(() => {});
}, { timeout: 3_600_000 }));

const scenarios = {
  async steps() {
    const start = performance.now();
    for (let number = 0; number < count; number += 1) await engine.start('ten', number);
    await until(() => ended >= count);
    say({ per_second: (count * 10) / ((performance.now() - start) / 1000) });
  },
  async step() {
    for (let number = 0; number < Math.ceil(count / 200); number += 1) {
      await engine.start('timed', 0);
      await until(() => ended > number);
    }
    report();
  },
  async whole() {
    for (let number = 0; number < count; number += 1) {
      began = performance.now();
      await engine.start('one', number);
      await until(() => ended > number);
      stop();
    }
    report();
  },
  async signal() {
    for (let number = 0; number < count; number += 1) {
      const run = await engine.start('signalled', number);
      while (engine.getExecution(run.id).state !== 'waiting') await new Promise((go) => setTimeout(go, 1));
      began = performance.now();
      await engine.signal(run.id, 'go');
      await until(() => ended > number);
    }
    report();
  },
  async sleepers() {
    let last;
    for (let number = 0; number < count; number += 1) last = await engine.start('sleeps', number);
    while (engine.getExecution(last.id).state !== 'waiting') await new Promise((go) => setTimeout(go, 10));
    say({ ready: true });
    await new Promise((resolve) => process.stdin.once('data', resolve));
  },
  async 'recovery-begin'() {
    for (let number = 0; number < count; number += 1) await engine.start('inFlight', number);
    await until(() => begun >= count);
    say({ ready: true });
    await new Promise(() => {});
  },
  async 'recovery-go'() {
    await engine.recover();
    await until(() => ended >= count);
    say({ done: true });
  },
};

await scenarios[scenario]();
process.exit(0);
