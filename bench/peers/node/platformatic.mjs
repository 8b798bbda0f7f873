// @platformatic/job-queue with its Redis storage. Results are stored for an hour, its default.

import { Queue, RedisStorage } from '@platformatic/job-queue'
import { randomUUID } from 'node:crypto'
import { PAYLOAD, RESULT, main } from './driver.mjs'

let queue, storage

await main({
  packages: ['@platformatic/job-queue', 'iovalkey'],

  // A producer is a queue without a handler, as in its guide. The worker creates another one.
  async open (url) {
    storage = new RedisStorage({ url })
    queue = new Queue({ storage })
    if (JSON.parse(process.argv[2]).do !== 'work') await queue.start()
  },

  async close () {
    await queue.stop()
  },

  enqueue: () => queue.enqueue(randomUUID(), { payload: PAYLOAD }),

  request: () => queue.enqueueAndWait(randomUUID(), { payload: PAYLOAD }, { timeout: 30_000 }),

  async work (concurrency, tick) {
    queue = new Queue({ storage, concurrency })
    queue.execute(async () => { tick(); return RESULT })
    await queue.start()
  }
})
