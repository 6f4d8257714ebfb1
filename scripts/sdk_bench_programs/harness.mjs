// What the benchmark programs in JavaScript share: PROGRAM SCENARIO JOBS PORT prints one JSON object.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

export const CONCURRENCY = 50;
export const BATCH = 1000;
export const DATA = { user: 4711, template: 'welcome', text: 'x'.repeat(60) };
const PAUSE_MS = 5;

const now = () => performance.timeOrigin + performance.now();

export async function main(make) {
  const [scenario, count, port] = process.argv.slice(2);
  const jobs = Number(count);
  const program = await make(Number(port));
  if (scenario === 'serve') {
    await program.serve((sent) => process.stdout.write(`${now() - sent}\n`));
    return;
  }
  const value = await { single, bulk, drain, latency }[scenario](program, jobs);
  process.stdout.write(`${JSON.stringify({ value })}\n`, () => process.exit(0));
}

async function rate(work, jobs) {
  const begun = performance.now();
  await work();
  return (jobs * 1000) / (performance.now() - begun);
}

const single = (program, jobs) => rate(() => program.single(jobs), jobs);
const bulk = (program, jobs) => rate(() => program.bulk(jobs), jobs);

async function drain(program, jobs) {
  await program.bulk(jobs);
  let done = 0;
  let first = 0;
  return new Promise((resolve) => {
    program.serve(() => {
      first ||= performance.now();
      done += 1;
      if (done === jobs) resolve(((jobs - 1) * 1000) / (performance.now() - first));
    });
  });
}

async function latency(program, jobs) {
  const [, script, , , port] = process.argv;
  const worker = spawn(process.execPath, [script, 'serve', '0', port], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const lines = createInterface({ input: worker.stdout })[Symbol.asyncIterator]();
  const found = [];
  for (let number = 0; number < jobs + 20; number += 1) {
    await program.add(now());
    found.push(Number((await lines.next()).value));
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  worker.kill('SIGKILL');
  const sorted = found.slice(20).sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}
