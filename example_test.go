package leasehold_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goleasehold/leasehold"
)

func Example() {
	rdb, stop := exampleRedis()
	defer stop()
	locks := leasehold.New(rdb)

	charge := func(ctx context.Context, order string) error {
		lock := locks.NewLock("orders:" + order)
		ctx, err := lock.Acquire(ctx) // from here on ctx ends the moment the lease is lost
		if err != nil {
			return err
		}
		defer func() { _ = lock.Release() }()
		fmt.Println("charging", order, "with a live lease:", ctx.Err() == nil)
		return nil
	}
	fmt.Println(charge(context.Background(), "42"))
	// Output:
	// charging 42 with a live lease: true
	// <nil>
}

func ExampleLock_WithLease() {
	rdb, stop := exampleRedis()
	defer stop()
	locks := leasehold.New(rdb)

	err := locks.NewLock("reports").WithLease(context.Background(), func(ctx context.Context) error {
		fmt.Println("working")
		return nil
	})
	fmt.Println(err)
	// Output:
	// working
	// <nil>
}

// A second submit of the same form is refused while the first is being worked on,
// and for a minute after. The lock keeps two from working at the same time; the
// marker beside it keeps the second from working afterwards.
func Example_duplicateSubmits() {
	rdb, stop := exampleRedis()
	defer stop()
	locks := leasehold.New(rdb)

	submit := func(w http.ResponseWriter, r *http.Request) {
		form := r.URL.Query().Get("form")
		lock := locks.NewLock("submit:" + form)
		// Not ended by a client that hangs up: the work is finished all the same.
		ctx, err := lock.TryAcquire(context.WithoutCancel(r.Context()))
		var busy *leasehold.BusyError
		switch {
		case errors.As(err, &busy):
			seconds := int(math.Ceil(busy.Remaining.Seconds()))
			w.Header().Set("Retry-After", strconv.Itoa(seconds))
			http.Error(w, "already being submitted", http.StatusConflict)
			return
		case err != nil: // Redis is away: nobody knows, so nothing is done
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		defer func() { _ = lock.Release() }()

		marker := "submitted:" + form
		switch done, err := rdb.Exists(ctx, marker).Result(); {
		case err != nil:
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		case done == 1:
			http.Error(w, "already submitted", http.StatusConflict)
			return
		}
		// The work goes here, with ctx. Then the marker, while the lock is still held.
		if err := rdb.Set(ctx, marker, 1, time.Minute).Err(); err != nil {
			http.Error(w, "done, but not marked", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "thank you")
	}

	post := func() {
		w := httptest.NewRecorder()
		submit(w, httptest.NewRequest(http.MethodPost, "/?form=7", nil))
		fmt.Println(w.Code, w.Header().Get("Retry-After"), w.Body)
	}
	post()
	post()

	elsewhere := leasehold.New(rdb).NewLock("submit:7") // another instance works on it
	if _, err := elsewhere.Acquire(context.Background()); err != nil {
		fmt.Println(err)
	}
	post()

	_ = rdb.Close()
	post()
	// Output:
	// 200  thank you
	// 409  already submitted
	//
	// 409 10 already being submitted
	//
	// 503  try again later
}

// A job that five hosts start at the same hour, and that is to run once. The key
// names the run, and a marker says that it is done: a host whose clock is late finds
// the lock free, and the marker.
func Example_jobThatRunsOnce() {
	rdb, stop := exampleRedis()
	defer stop()
	const run = "invoices:2026-11-21"

	host := func() (ran bool, err error) {
		locks := leasehold.New(rdb)
		defer func() { _ = locks.Close() }()
		err = locks.NewLock(run).WithLease(context.Background(), func(ctx context.Context) error {
			done, err := rdb.Exists(ctx, run+":done").Result()
			if err != nil || done == 1 {
				return err
			}
			ran = true // the job goes here; it stops when ctx ends
			return rdb.Set(ctx, run+":done", 1, 24*time.Hour).Err()
		})
		return ran, err
	}

	type result struct {
		ran bool
		err error
	}
	results := make(chan result)
	for range 5 {
		go func() { ran, err := host(); results <- result{ran, err} }()
	}
	runs := 0
	for range 5 {
		r := <-results
		if r.err != nil {
			fmt.Println(r.err)
		}
		if r.ran {
			runs++
		}
	}
	fmt.Println("runs:", runs)
	// Output:
	// runs: 1
}

// One leader, who goes on trying after a loss. ctx ends when the process is to end;
// the lease's context, when it is not the leader any more.
func Example_leader() {
	rdb, stop := exampleRedis()
	defer stop()
	locks := leasehold.New(rdb, leasehold.WithTTL(time.Second))

	terms := 0
	lead := func(lease context.Context) error {
		terms++
		if terms == 1 {
			rdb.Del(lease, "leader") // something goes wrong
		} else {
			return errors.New("stop the example")
		}
		<-lease.Done()
		return context.Cause(lease)
	}

	campaign := func(ctx context.Context) error {
		lock := locks.NewLock("leader")
		for {
			err := lock.WithLease(ctx, lead)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, leasehold.ErrLost):
				fmt.Println("lost it, and try again")
			case err != nil:
				return err // Redis refuses, or the work failed: somebody has to look
			}
		}
	}
	fmt.Println(campaign(context.Background()))
	fmt.Println("terms:", terms)
	// Output:
	// lost it, and try again
	// stop the example
	// terms: 2
}

// At SIGTERM a process stops waiting for the lock; where it already has it, it keeps
// the lease while the work drains. So the signal ends the wait, and not the context
// that the lease hangs on.
func Example_shutdown() {
	rdb, stop := exampleRedis()
	defer stop()
	lock := leasehold.New(rdb).NewLock("migrations")

	terminated, stopSignals := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stopSignals()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	keep := context.AfterFunc(terminated, cancel)
	lease, err := lock.Acquire(ctx)
	if err != nil {
		fmt.Println("not started:", err)
		return
	}
	defer func() { _ = lock.Release() }()
	if !keep() { // the signal came first, and ends the lease
		return
	}

	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		fmt.Println(err)
	}
	<-terminated.Done()
	fmt.Println("terminated, and the lease lives on:", lease.Err() == nil)
	fmt.Println("released:", lock.Release())
	// Output:
	// terminated, and the lease lives on: true
	// released: <nil>
}

// The exclusive use of a resource, with a bound on the wait and none on the use.
func ExampleWithWait() {
	rdb, stop := exampleRedis()
	defer stop()
	locks := leasehold.New(rdb, leasehold.WithWait(200*time.Millisecond))

	first := locks.NewLock("printer", leasehold.WithMetadata("host 3"))
	if _, err := first.Acquire(context.Background()); err != nil {
		fmt.Println(err)
	}
	_, err := locks.NewLock("printer").Acquire(context.Background())
	var busy *leasehold.BusyError
	if errors.As(err, &busy) {
		fmt.Println("given up,", busy.Holder, "uses it")
	}
	fmt.Println(first.Release())
	// Output:
	// given up, host 3 uses it
	// <nil>
}

// refuseOlder is a store that checks the fence, as a Redis script. It remembers the
// highest it has seen with the value.
var refuseOlder = redis.NewScript(`
local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
if tonumber(ARGV[1]) < seen then return redis.error_reply('FENCED a later holder has written') end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return redis.status_reply('OK')`)

// saveInSQL is the same check in a database.
func saveInSQL(ctx context.Context, db *sql.DB, fence int64, balance string) error {
	result, err := db.ExecContext(ctx,
		`UPDATE accounts SET balance = ?, fence = ? WHERE id = 1 AND fence <= ?`, balance, fence, fence)
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 0 {
		return errors.Join(errors.New("a later holder has written"), err)
	}
	return nil
}

var _ = saveInSQL // the example below runs the script

// The fence reaches a write that is calls away by the context, and the store refuses
// a write whose holder has been succeeded, however late it comes.
func ExampleFenceFrom() {
	rdb, stop := exampleRedis()
	defer stop()
	locks := leasehold.New(rdb)

	// save has the context and nothing else.
	save := func(ctx context.Context, value string) error {
		fence, ok := leasehold.FenceFrom(ctx, "accounts:1")
		if !ok {
			return errors.New("save is called without the lock")
		}
		// A late write must be refused by its fence, and not by its context.
		return refuseOlder.Run(context.WithoutCancel(ctx), rdb, []string{"balance"}, fence, value).Err()
	}
	book := func(ctx context.Context, value string) error { return save(ctx, value) }
	handle := func(ctx context.Context, value string) error { return book(ctx, value) }

	frozen := locks.NewLock("accounts:1")
	before, err := frozen.Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
	}
	_ = frozen.Release() // as if it had expired while the process stood still
	successor := locks.NewLock("accounts:1")
	after, err := successor.Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println("the successor writes:", handle(after, "20"))
	fmt.Println("the frozen one writes:", handle(before, "10"))
	fmt.Println("balance:", rdb.HGet(context.Background(), "balance", "value").Val())
	fmt.Println(successor.Release())
	// Output:
	// the successor writes: <nil>
	// the frozen one writes: FENCED a later holder has written
	// balance: 20
	// <nil>
}
