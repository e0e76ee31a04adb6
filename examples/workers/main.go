// Workers starts five worker processes that compete for one key, with tasks shorter
// and longer than its TTL, shows that no two of them work at once, and then kills one
// that holds the key and measures how soon the next one does. It runs by itself, on a
// Redis inside the parent process:
//
//	go run ./examples/workers
//	go run ./examples/workers -redis localhost:6379
//
// What a worker does with its lock is in worker.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/goleasehold/leasehold"
)

const key = "leasehold:example:report"

// Times are counted in units: the length of each worker's first task, and the TTL.
var tasks = []int{2, 5, 10, 15, 22}

const ttlUnits = 10

func main() {
	log.SetFlags(0)
	addr := flag.String("redis", "", "the Redis to use, as host:port; by default one inside this process")
	unit := flag.Duration("unit", 100*time.Millisecond, "what the times are counted in; whole milliseconds")
	number := flag.Int("worker", 0, "be this worker, as which the parent starts its own program")
	flag.Parse()
	var err error
	if *number > 0 {
		err = work(*addr, *number, *unit)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		err = run(ctx, os.Stdout, *addr, *unit)
	}
	if err != nil {
		log.Fatal("workers: ", err)
	}
}

// run is the parent: it starts the workers, orders tasks, kills, and checks.
func run(ctx context.Context, out io.Writer, addr string, unit time.Duration) error {
	if addr == "" {
		embedded, stop, err := serve()
		if err != nil {
			return err
		}
		defer stop()
		addr = embedded
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	ttl := ttlUnits * unit
	locks := leasehold.New(rdb, leasehold.WithTTL(ttl))
	defer locks.Close()

	fmt.Fprintf(out, "Five workers, one key, a TTL of %v. The tasks take %v units of %v.\n\n", ttl, tasks, unit)
	c, err := startCrew(out, len(tasks), addr, unit)
	defer c.stop()
	if err != nil {
		return err
	}
	for n, units := range tasks {
		c.order(n+1, units)
	}
	if _, err := c.await(ctx, done, len(tasks)); err != nil {
		return err
	}
	lastRenewalAt, err := killHolder(ctx, c, locks, unit)
	if err != nil {
		return err
	}
	next, err := c.await(ctx, holds, 1)
	if err != nil {
		return err
	}
	if _, err := c.await(ctx, done, len(tasks)-1); err != nil {
		return err
	}

	fmt.Fprintf(out, "\n%s\n", c.seen.chart(unit))
	if err := c.seen.checkExclusion(); err != nil {
		return err
	}
	fmt.Fprintln(out, "No two workers held the key at once, and each holder's fence was higher than the one before.")
	took := next.At.Sub(lastRenewalAt)
	fmt.Fprintf(out, "Worker %d held the key %v after the last renewal of the killed one; the TTL is %v.\n",
		next.Worker, took.Round(time.Millisecond), ttl)
	return checkTakeOver(took, ttl)
}

// killHolder kills the last worker while it holds the key and the others wait for
// it, and returns when it had renewed its lease last.
//
// Redis knows that best. It tells a caller that finds the key busy how long the
// holder has left, and that time began as the TTL at the last renewal that Redis
// carried out. It is asked after the death, when no other renewal can be sent; and
// the death comes midway between two renewals, so that none is under way.
func killHolder(ctx context.Context, c *crew, locks *leasehold.Client, unit time.Duration) (lastRenewalAt time.Time, err error) {
	victim := len(tasks)
	c.order(victim, tasks[victim-1])
	held, err := c.await(ctx, holds, 1)
	if err != nil {
		return time.Time{}, err
	}
	for n := 1; n < victim; n++ {
		c.order(n, 2)
	}
	if _, err := c.await(ctx, waits, victim-1); err != nil {
		return time.Time{}, err
	}
	select {
	case <-time.After(time.Until(held.At.Add(ttlUnits * unit * 3 / 4))):
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
	if err := c.workers[victim-1].cmd.Process.Kill(); err != nil {
		return time.Time{}, err
	}
	if _, err := c.await(ctx, ended, 1); err != nil {
		return time.Time{}, err
	}

	ttl := ttlUnits * unit
	askedAt := time.Now()
	_, err = locks.NewLock(key).TryAcquire(ctx)
	var busy *leasehold.BusyError
	if !errors.As(err, &busy) || busy.Holder != name(victim) || busy.Remaining > ttl {
		return time.Time{}, fmt.Errorf("%s is dead, should hold the key for less than %v, but: %v", name(victim), ttl, err)
	}
	return askedAt.Add(busy.Remaining - ttl), nil
}

// serve starts a Redis inside this process and returns its address.
func serve() (addr string, stop func(), err error) {
	embedded, err := miniredis.Run()
	if err != nil {
		return "", nil, err
	}
	// Its keys do not expire by themselves: its clock has to be moved on. That is done
	// before each script, since a lock asks for nothing else, so that however busy the
	// machine is no key expires early.
	var mu sync.Mutex
	movedAt := time.Now()
	embedded.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if command == "EVALSHA" || command == "EVAL" {
			mu.Lock()
			defer mu.Unlock()
			now := time.Now()
			embedded.FastForward(now.Sub(movedAt))
			movedAt = now
		}
		return false
	})
	return embedded.Addr(), embedded.Close, nil
}
