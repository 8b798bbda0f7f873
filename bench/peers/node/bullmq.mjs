// BullMQ on ioredis: addBulk in chunks of 1000, one Worker, completed jobs stored.

import { Queue, QueueEvents, Worker } from 'bullmq'
import { PAYLOAD, RESULT, chunks, main } from './driver.mjs'

let queue, events, connection

await main({
  packages: ['bullmq', 'ioredis'],

  async open (url) {
    const { hostname, port } = new URL(url)
    connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null }
    queue = new Queue('bench', { connection })
    await queue.waitUntilReady()
  },

  async close () {
    await events?.close()
    await queue.close()
  },

  enqueue: () => queue.add('noop', { payload: PAYLOAD }),

  async bulk (n) {
    for (const size of chunks(n, 1000)) {
      await queue.addBulk(Array.from({ length: size }, () => ({ name: 'noop', data: { payload: PAYLOAD } })))
    }
  },

  async request () {
    if (!events) {
      events = new QueueEvents('bench', { connection })
      await events.waitUntilReady()
    }
    const job = await queue.add('noop', { payload: PAYLOAD })
    return await job.waitUntilFinished(events, 30_000)
  },

  async work (concurrency, tick) {
    const worker = new Worker('bench', async () => { tick(); return RESULT }, { connection, concurrency })
    worker.on('error', error => console.error(error))
    await worker.waitUntilReady()
  }
})
