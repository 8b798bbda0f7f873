// A worker for jobq in Go. It needs only proto/jobq/v1: see README.md for how to build it.
//
// The worker registers, receives jobs on a stream within its credit, sends heartbeats that name its
// running jobs, reports ended runs in batches, and stops gracefully on SIGTERM.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	jobq "jobq.example/proto/jobq/v1"
)

// Arguments are the positional arguments of a job, and its keyword arguments.
type Arguments struct {
	Args   []json.RawMessage
	Kwargs map[string]json.RawMessage
}

// A Handler runs one job. Its result becomes the result of the job. The context ends when the job
// is cancelled, when its lease is lost, and when its timeout has passed.
type Handler func(ctx context.Context, given Arguments) (any, error)

var handlers = map[string]Handler{
	"greet": func(_ context.Context, given Arguments) (any, error) {
		var name string
		if len(given.Args) != 1 || json.Unmarshal(given.Args[0], &name) != nil {
			return nil, errors.New("greet takes one string")
		}
		return "hello " + name + " from go", nil
	},
	"nap": func(ctx context.Context, given Arguments) (any, error) {
		var seconds float64
		if len(given.Args) != 1 || json.Unmarshal(given.Args[0], &seconds) != nil {
			return nil, errors.New("nap takes a number of seconds")
		}
		select {
		case <-time.After(time.Duration(seconds * float64(time.Second))):
			return seconds, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	},
}

const (
	callTimeout = 10 * time.Second // for one call
	stopTimeout = 5 * time.Second  // for handlers whose context has ended
	deafAfter   = 15 * time.Second // the server sends something at least every 5 s
	maxReports  = 1000             // results of one Report
)

// run is a job that this worker runs.
type run struct {
	ref    *jobq.LeaseRef
	cancel context.CancelFunc
	ended  bool // its result waits to be reported
}

// Worker is one registered worker.
type Worker struct {
	client      jobq.WorkerServiceClient
	queues      []string
	concurrency int
	token       func() string

	name      string
	session   string
	heartbeat time.Duration

	mutex   sync.Mutex
	running map[string]*run
	send    chan *jobq.StreamJobsRequest // to the stream that is open now
	results chan *jobq.Result
	jobs    sync.WaitGroup
	stop    chan struct{} // closed when the worker is to stop
	once    sync.Once
	now     bool // stop without waiting for jobs
}

func main() {
	address := flag.String("server-addr", "127.0.0.1:50051", "host:port of jq-server")
	queues := flag.String("queues", "default", "queues, with commas between them")
	concurrency := flag.Int("concurrency", 10, "how many jobs run at once")
	name := flag.String("worker-id", "", "name of this worker; the server makes one if it is empty")
	ca := flag.String("tls-ca", "", "file with the CA of the server; plaintext without it")
	tokenFile := flag.String("token-file", "", "file with the token; default: JQ_TOKEN")
	grace := flag.Duration("grace", 30*time.Second, "how long jobs may run on after SIGTERM")
	flag.Parse()

	security := insecure.NewCredentials()
	if *ca != "" {
		pem, err := os.ReadFile(*ca)
		if err != nil {
			log.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		security = credentials.NewTLS(&tls.Config{RootCAs: pool})
	}
	connection, err := grpc.NewClient(*address, grpc.WithTransportCredentials(security))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()

	worker := &Worker{
		client:      jobq.NewWorkerServiceClient(connection),
		queues:      strings.Split(*queues, ","),
		concurrency: *concurrency,
		name:        *name,
		running:     map[string]*run{},
		results:     make(chan *jobq.Result, maxReports),
		stop:        make(chan struct{}),
		token: func() string { // read again for each call: a token in a file may be renewed
			if *tokenFile == "" {
				return os.Getenv("JQ_TOKEN")
			}
			text, _ := os.ReadFile(*tokenFile)
			return strings.TrimSpace(string(text))
		},
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		worker.shutdown(false)
		<-signals
		worker.shutdown(true)
	}()
	if err := worker.Run(*grace); err != nil {
		log.Fatal(err)
	}
}

// Run registers the worker and runs jobs until the worker is told to stop.
func (w *Worker) Run(grace time.Duration) error {
	if err := w.register(); err != nil {
		return err
	}
	log.Printf("worker %s takes jobs from %s", w.name, strings.Join(w.queues, ", "))
	reported := make(chan struct{})
	go func() { w.report(); close(reported) }()
	beating, stopBeating := context.WithCancel(context.Background())
	go w.beat(beating)
	w.stream()

	// Stopping: jobs that outlast the grace time are released. That costs them no retry.
	finished := make(chan struct{})
	go func() { w.jobs.Wait(); close(finished) }()
	if !w.now {
		select {
		case <-finished:
		case <-time.After(grace):
		}
	}
	w.releaseAll()
	select {
	case <-finished:
		close(w.results)
		<-reported
	case <-time.After(stopTimeout): // a handler ignores its context, and its job is released
	}
	stopBeating()
	ctx, done := w.context()
	defer done()
	_, err := w.client.Deregister(ctx, &jobq.DeregisterRequest{Worker: w.name, Session: w.session})
	log.Printf("worker %s has stopped", w.name)
	return err
}

func (w *Worker) shutdown(now bool) {
	w.now = w.now || now
	w.once.Do(func() { close(w.stop) })
}

func (w *Worker) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.authorized(context.Background()), callTimeout)
}

func (w *Worker) authorized(ctx context.Context) context.Context {
	if token := w.token(); token != "" {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return ctx
}

func (w *Worker) register() error {
	host, _ := os.Hostname()
	request := &jobq.RegisterRequest{
		Worker: w.name, Queues: w.queues, Concurrency: int32(w.concurrency),
		Host: host, Pid: int32(os.Getpid()), Session: w.session,
	}
	for {
		ctx, done := w.context()
		reply, err := w.client.Register(ctx, request)
		done()
		if err == nil {
			w.name, w.session = reply.Worker, reply.Session
			w.heartbeat = time.Duration(reply.HeartbeatMs) * time.Millisecond
			return nil
		}
		if !temporary(err) {
			return err
		}
		select {
		case <-w.stop:
			return err
		case <-time.After(time.Second):
		}
	}
}

// stream keeps a job stream open until the worker stops.
func (w *Worker) stream() {
	for wait := time.Second / 10; ; wait = min(2*wait, 5*time.Second) {
		opened := time.Now()
		err := w.streamOnce()
		select {
		case <-w.stop:
			return
		default:
		}
		log.Printf("the stream ended: %v", err)
		if time.Since(opened) > deafAfter {
			wait = time.Second / 10
		}
		select {
		case <-w.stop:
			return
		case <-time.After(wait):
		}
	}
}

func (w *Worker) streamOnce() error {
	ctx, cancel := context.WithCancel(w.authorized(context.Background()))
	defer cancel()
	stream, err := w.client.StreamJobs(ctx)
	if err != nil {
		return err
	}
	w.mutex.Lock()
	send := make(chan *jobq.StreamJobsRequest, 2*w.concurrency+100)
	open := &jobq.StreamJobsRequest_Open{Worker: w.name, Session: w.session}
	for _, run := range w.running {
		open.Running = append(open.Running, run.ref)
	}
	credit := int32(w.concurrency - len(w.running))
	send <- &jobq.StreamJobsRequest{Open: open, Credit: credit}
	w.send = send
	w.mutex.Unlock()
	go func() { // one goroutine sends: a stream of gRPC allows no more
		for {
			select {
			case message := <-send:
				if stream.Send(message) != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()

	messages := make(chan *jobq.StreamJobsResponse)
	failed := make(chan error, 1)
	go func() {
		for {
			message, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case messages <- message:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case message := <-messages:
			w.take(message, send)
		case err := <-failed:
			return err
		case <-time.After(deafAfter):
			return errors.New("nothing was received for too long")
		case <-w.stop:
			return nil
		}
	}
}

func (w *Worker) take(message *jobq.StreamJobsResponse, send chan *jobq.StreamJobsRequest) {
	if len(message.Jobs) > 0 { // confirm before anything starts
		received := &jobq.StreamJobsRequest{}
		for _, job := range message.Jobs {
			received.Received = append(received.Received, refOf(job))
		}
		send <- received
	}
	for _, job := range message.Jobs {
		w.start(job)
	}
	for _, ref := range message.Cancelled {
		w.cancel(ref.Token)
	}
	w.obey(message.Request)
	if len(message.Jobs)+len(message.Cancelled) == 0 && message.Request == "" {
		send <- &jobq.StreamJobsRequest{} // alive
	}
}

func (w *Worker) start(job *jobq.Lease) {
	ctx, cancel := context.WithCancel(context.Background())
	if timeout := job.GetTimeoutMs(); timeout > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(timeout)*time.Millisecond)
	}
	w.mutex.Lock()
	w.running[job.Token] = &run{ref: refOf(job), cancel: cancel}
	w.mutex.Unlock()
	w.jobs.Add(1)
	go func() {
		defer w.jobs.Done()
		defer cancel()
		result := w.runJob(ctx, job)
		w.mutex.Lock()
		run, held := w.running[job.Token]
		if held {
			run.ended = true
		}
		w.mutex.Unlock()
		if held { // a lost or released job is reported by nobody
			w.results <- result
		}
	}()
}

// runJob calls the handler. A panic fails the job, not the worker.
func (w *Worker) runJob(ctx context.Context, job *jobq.Lease) (result *jobq.Result) {
	result = &jobq.Result{Lease: refOf(job)}
	failed := func(kind, message, reason string) {
		result.End = &jobq.Result_Failed{
			Failed: &jobq.Failed{Type: kind, Message: message, Reason: reason},
		}
	}
	defer func() {
		if problem := recover(); problem != nil {
			failed("panic", fmt.Sprint(problem), "error")
		}
	}()
	handler, known := handlers[job.Name]
	if !known { // another worker may know the task
		result.End = &jobq.Result_Unknown{Unknown: &jobq.Unknown{UnknownMs: job.UnknownMs}}
		return
	}
	var call [2]json.RawMessage // [args, kwargs]
	var given Arguments
	if job.Codec != "json" || json.Unmarshal(job.Payload, &call) != nil ||
		json.Unmarshal(call[0], &given.Args) != nil || json.Unmarshal(call[1], &given.Kwargs) != nil {
		failed("InvalidPayload", "the payload is not [args, kwargs] in JSON", "error")
		return
	}
	value, err := handler(ctx, given)
	if err == nil {
		var encoded []byte
		if encoded, err = json.Marshal(value); err == nil {
			result.End = &jobq.Result_Completed{Completed: &jobq.Completed{Result: encoded}}
			return
		}
	}
	reason := "error"
	if errors.Is(err, context.DeadlineExceeded) {
		reason = "timeout"
	}
	failed(fmt.Sprintf("%T", err), err.Error(), reason)
	return
}

// report sends results in batches: those that arrive while a call is under way go with the next.
func (w *Worker) report() {
	for calls := 1; ; calls++ {
		first, open := <-w.results
		if !open {
			return
		}
		batch := []*jobq.Result{first}
	gather:
		for len(batch) < maxReports {
			select {
			case next, open := <-w.results:
				if !open {
					break gather
				}
				batch = append(batch, next)
			default:
				break gather
			}
		}
		w.reportBatch(batch, fmt.Sprintf("r%d-%d", os.Getpid(), calls))
	}
}

func (w *Worker) reportBatch(batch []*jobq.Result, call string) {
	request := &jobq.ReportRequest{Worker: w.name, Results: batch, Call: call}
	for { // the name of the call makes it safe to repeat
		ctx, done := w.context()
		reply, err := w.client.Report(ctx, request)
		done()
		if err == nil {
			for _, stale := range reply.Stale {
				log.Printf("job %s: the lease was lost, and the result was not stored", stale.Id)
			}
			break
		}
		if !temporary(err) {
			log.Printf("%d results were refused: %v", len(batch), err)
			break
		}
		time.Sleep(time.Second)
	}
	refs := make([]*jobq.LeaseRef, len(batch))
	for n, result := range batch {
		refs[n] = result.Lease
	}
	w.forget(refs)
}

// forget removes ended jobs, and gives their credit back.
func (w *Worker) forget(refs []*jobq.LeaseRef) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	credit := 0
	for _, ref := range refs {
		if run, known := w.running[ref.Token]; known {
			run.cancel()
			delete(w.running, ref.Token)
			credit++
		}
	}
	if credit > 0 && w.send != nil {
		select {
		case w.send <- &jobq.StreamJobsRequest{Credit: int32(credit)}:
		default: // the stream is broken: the next one names its credit when it opens
		}
	}
}

func (w *Worker) beat(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(w.heartbeat):
		}
		calling, done := w.context()
		reply, err := w.client.Heartbeat(calling, &jobq.HeartbeatRequest{
			Worker: w.name, Session: w.session, Running: w.refs(),
		})
		done()
		if err != nil {
			log.Printf("heartbeat: %v", err)
			if status.Code(err) == codes.FailedPrecondition { // another worker has the name
				w.shutdown(true)
			}
			continue
		}
		for _, changed := range reply.Changed {
			if changed.State == "lost" {
				w.forget([]*jobq.LeaseRef{changed.Lease})
			} else {
				w.cancel(changed.Lease.Token)
			}
		}
		w.obey(reply.Request)
	}
}

// obey does what an operator asks. The server itself sends no jobs to a worker that drains.
func (w *Worker) obey(request string) {
	switch request {
	case "shutdown":
		w.shutdown(false)
	case "shutdown-now":
		w.shutdown(true)
	}
}

func (w *Worker) refs() []*jobq.LeaseRef {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	refs := make([]*jobq.LeaseRef, 0, len(w.running))
	for _, run := range w.running {
		refs = append(refs, run.ref)
	}
	return refs
}

func (w *Worker) cancel(token string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if run, known := w.running[token]; known {
		run.cancel()
	}
}

func (w *Worker) releaseAll() {
	var refs []*jobq.LeaseRef
	w.mutex.Lock()
	for _, run := range w.running {
		if !run.ended {
			refs = append(refs, run.ref)
		}
	}
	w.mutex.Unlock()
	if len(refs) > 0 {
		log.Printf("releasing %d jobs that have not ended", len(refs))
		w.forget(refs)
		ctx, done := w.context()
		defer done()
		request := &jobq.ReleaseRequest{Worker: w.name, Leases: refs}
		if _, err := w.client.Release(ctx, request); err != nil {
			log.Printf("release: %v", err)
		}
	}
}

func refOf(job *jobq.Lease) *jobq.LeaseRef {
	return &jobq.LeaseRef{Queue: job.Queue, Id: job.Id, Token: job.Token}
}

func temporary(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted:
		return true
	}
	return false
}
