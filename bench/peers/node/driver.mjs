// The program that runs a Node adapter. Its protocol is described in bench/adapter.py.
//
// An adapter is { packages, prepare(url)?, open(url), close(), enqueue(), bulk(n)?, request()?, work(concurrency, tick) }.

import { readFileSync, writeSync } from 'node:fs'

export const PAYLOAD = 'x'.repeat(100)
export const RESULT = 42
const WARM_UP = 20
const TASKS = 100

const command = JSON.parse(process.argv[2])

export async function main (adapter) {
  if (command.do === 'prepare') {
    await adapter.prepare?.(command.url)
    answer({})
    process.exit(0)
  }
  await adapter.open(command.url)
  const programs = { enqueue, fill, request, work }
  const reply = await programs[command.do](adapter)
  if (reply === undefined) return // `work` continues until it is killed
  answer({ ...reply, versions: versions(adapter.packages) })
  await adapter.close()
  process.exit(0)
}

async function enqueue (adapter) {
  await adapter.enqueue() // not timed: opens connections, loads scripts
  if (command.mode === 'bulk' && !adapter.bulk) return { unsupported: 'no bulk enqueue' }
  const ways = { one: oneByOne, concurrent: concurrently, bulk: (adapter, n) => adapter.bulk(n) }
  const started = performance.now()
  await ways[command.mode](adapter, command.n)
  return { n: command.n, seconds: (performance.now() - started) / 1000 }
}

async function fill (adapter) {
  await (adapter.bulk ? adapter.bulk(command.n) : concurrently(adapter, command.n))
  return { n: command.n }
}

async function request (adapter) {
  if (!adapter.request) return { unsupported: 'no results, and no way to wait for a job' }
  for (let i = 0; i < WARM_UP; i++) await adapter.request()
  const ms = []
  for (let i = 0; i < command.n; i++) {
    const started = performance.now()
    await adapter.request()
    ms.push(performance.now() - started)
  }
  return { ms }
}

// From the first handler call to the target-th, as in the Python adapters.
async function work (adapter) {
  let calls = 0
  let started = 0
  await adapter.work(command.concurrency, () => {
    calls++
    if (calls === 1) started = performance.now()
    else if (calls === command.target) answer({ n: calls - 1, seconds: (performance.now() - started) / 1000 })
  })
}

async function oneByOne (adapter, n) {
  for (let i = 0; i < n; i++) await adapter.enqueue()
}

async function concurrently (adapter, n) {
  const part = i => Math.floor(n / TASKS) + (i < n % TASKS ? 1 : 0)
  await Promise.all(Array.from({ length: TASKS }, (_, i) => oneByOne(adapter, part(i))))
}

function answer (value) {
  writeSync(1, `BENCH ${JSON.stringify(value)}\n`)
}

function versions (packages) {
  const read = name => JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version
  return { node: process.versions.node, ...Object.fromEntries(packages.map(name => [name, read(name)])) }
}

export function * chunks (n, size) {
  for (let start = 0; start < n; start += size) yield Math.min(size, n - start)
}
