// BullMQ on Redis.
import { Queue, Worker } from 'bullmq';
import { BATCH, CONCURRENCY, DATA, main } from './harness.mjs';

await main((port) => {
  const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null };
  const queue = new Queue('bench', { connection });
  return {
    async single(jobs) {
      for (let number = 0; number < jobs; number += 1) await queue.add('noop', DATA);
    },
    async bulk(jobs) {
      for (let start = 0; start < jobs; start += BATCH) {
        const length = Math.min(BATCH, jobs - start);
        await queue.addBulk(Array.from({ length }, () => ({ name: 'noop', data: DATA })));
      }
    },
    add: (sent) => queue.add('noop', { sent }),
    async serve(started) {
      const handler = async (job) => { started(job.data.sent ?? 0); };
      const worker = new Worker('bench', handler, { connection, concurrency: CONCURRENCY });
      await worker.waitUntilReady();
    },
  };
});
