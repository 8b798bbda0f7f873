// Graphile Worker. Jobs are deleted when they are done, and there are no results to wait for.
//
// The plain variant fetches and completes job by job. The variant `local` has the settings of its
// performance guide: a local queue of 500 jobs, and completions in batches. A worker that crashes
// then leaves up to 500 jobs locked, for four hours.

import { makeWorkerUtils, run, Logger } from 'graphile-worker'
import { PAYLOAD, chunks, main } from './driver.mjs'

const local = JSON.parse(process.argv[2]).variant === 'local'
const logger = new Logger(() => (level, message) => { if (level === 'error') console.error(message) })

let utils, address

await main({
  packages: ['graphile-worker', 'pg'],

  async prepare (url) {
    const made = await makeWorkerUtils({ connectionString: url, logger })
    await made.migrate()
    await made.release()
  },

  async open (url) {
    address = url
    utils = await makeWorkerUtils({ connectionString: url, logger, maxPoolSize: 20 })
  },

  async close () {
    await utils.release()
  },

  enqueue: () => utils.addJob('noop', { payload: PAYLOAD }),

  async bulk (n) {
    for (const size of chunks(n, 1000)) {
      await utils.addJobs(Array.from({ length: size }, () => ({ identifier: 'noop', payload: { payload: PAYLOAD } })))
    }
  },

  async work (concurrency, tick) {
    const batching = local ? { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {}
    await run({
      preset: { worker: { connectionString: address, concurrentJobs: concurrency, maxPoolSize: Math.min(concurrency + 1, 25), logger, ...batching } },
      taskList: { noop: async () => { tick() } },
      noHandleSignals: true
    })
  }
})
