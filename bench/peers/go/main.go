// River on pgx. The protocol is described in bench/adapter.py.
//
// Its settings are those of its own benchmark command: FetchCooldown 2 ms and FetchPollInterval
// 20 ms, instead of 100 ms and 1 s. Bulk enqueue is InsertManyFast, which uses COPY. The handler
// records its result with RecordOutput. Only a client in the worker's own process can wait for a
// job, so request/response is not measured.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const tasks = 100 // concurrent producers, as in the other adapters
const chunk = 1000
const connections = 20

var payload = strings.Repeat("x", 100)

type command struct {
	Do          string `json:"do"`
	URL         string `json:"url"`
	Mode        string `json:"mode"`
	N           int    `json:"n"`
	Concurrency int    `json:"concurrency"`
	Target      int64  `json:"target"`
}

type noopArgs struct {
	Payload string `json:"payload"`
}

func (noopArgs) Kind() string { return "noop" }

type noopWorker struct {
	river.WorkerDefaults[noopArgs]
	target  int64
	calls   atomic.Int64
	started time.Time
}

// Work counts the call, and replies at the target: from the first call to the last counted one.
func (w *noopWorker) Work(ctx context.Context, job *river.Job[noopArgs]) error {
	switch n := w.calls.Add(1); n {
	case 1:
		w.started = time.Now()
	case w.target:
		answer(map[string]any{"n": n - 1, "seconds": time.Since(w.started).Seconds()})
	}
	return river.RecordOutput(ctx, 42)
}

func main() {
	var given command
	check(json.Unmarshal([]byte(os.Args[1]), &given))
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(given.URL)
	check(err)
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	check(err)
	defer pool.Close()
	switch given.Do {
	case "prepare":
		migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
		check(err)
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		check(err)
		answer(map[string]any{})
	case "enqueue":
		enqueue(ctx, producer(pool), given)
	case "fill":
		bulk(ctx, producer(pool), given.N)
		answer(map[string]any{"n": given.N, "versions": versions()})
	case "work":
		work(ctx, pool, given)
	case "request":
		answer(map[string]any{"unsupported": "only the worker's own process can wait for a job"})
	}
}

func producer(pool *pgxpool.Pool) *river.Client[pgx.Tx] {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet()})
	check(err)
	return client
}

func enqueue(ctx context.Context, client *river.Client[pgx.Tx], given command) {
	oneByOne(ctx, client, 1) // not timed: opens connections
	started := time.Now()
	switch given.Mode {
	case "one":
		oneByOne(ctx, client, given.N)
	case "concurrent":
		var group sync.WaitGroup
		for i := range tasks {
			group.Add(1)
			go func() {
				defer group.Done()
				part := given.N / tasks
				if i < given.N%tasks {
					part++
				}
				oneByOne(ctx, client, part)
			}()
		}
		group.Wait()
	case "bulk":
		bulk(ctx, client, given.N)
	}
	answer(map[string]any{"n": given.N, "seconds": time.Since(started).Seconds(), "versions": versions()})
}

func oneByOne(ctx context.Context, client *river.Client[pgx.Tx], n int) {
	for range n {
		_, err := client.Insert(ctx, noopArgs{Payload: payload}, nil)
		check(err)
	}
}

func bulk(ctx context.Context, client *river.Client[pgx.Tx], n int) {
	for start := 0; start < n; start += chunk {
		jobs := make([]river.InsertManyParams, min(chunk, n-start))
		for i := range jobs {
			jobs[i] = river.InsertManyParams{Args: noopArgs{Payload: payload}}
		}
		_, err := client.InsertManyFast(ctx, jobs)
		check(err)
	}
}

func work(ctx context.Context, pool *pgxpool.Pool, given command) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &noopWorker{target: given.Target})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            quiet(),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: given.Concurrency}},
		Workers:           workers,
	})
	check(err)
	check(client.Start(ctx))
	select {} // until it is killed
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

func answer(value map[string]any) {
	line, err := json.Marshal(value)
	check(err)
	fmt.Fprintf(os.Stdout, "BENCH %s\n", line)
}

func versions() map[string]string {
	found := map[string]string{"go": runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			switch module.Path {
			case "github.com/riverqueue/river":
				found["river"] = module.Version
			case "github.com/jackc/pgx/v5":
				found["pgx"] = module.Version
			}
		}
	}
	return found
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
