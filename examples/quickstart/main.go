// Quickstart takes a lock, keeps it, hands it on and loses one, and says what it
// sees. It runs by itself, on a Redis inside the process:
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -redis redis://localhost:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/goleasehold/leasehold"
)

func main() {
	url := flag.String("redis", "", "the Redis to use, as redis://host:port; by default one inside this process")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *url); err != nil {
		log.Fatal(err)
	}
}

const (
	ttl = time.Second
	key = "orders:42"
)

func run(ctx context.Context, out io.Writer, url string) error {
	rdb, stop, err := connect(url)
	if err != nil {
		return err
	}
	defer stop()
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }

	// Two processes would have a Client each; here both are in one.
	ours := leasehold.New(rdb, leasehold.WithTTL(ttl), leasehold.WithMetadata("worker 1"))
	theirs := leasehold.New(rdb, leasehold.WithTTL(ttl), leasehold.WithMetadata("worker 2"))
	defer ours.Close()
	defer theirs.Close()

	lock := ours.NewLock(key)
	lease, err := lock.Acquire(ctx)
	if err != nil {
		return err
	}
	say("worker 1 holds %s for %v at a time, with fence %d", key, ttl, lock.Fence())

	time.Sleep(ttl * 13 / 10)
	say("after 1.3 s it still does, because it was renewed: %v left, context error: %v",
		lock.Remaining().Round(100*time.Millisecond), lease.Err())

	rival := theirs.NewLock(key)
	_, err = rival.TryAcquire(ctx)
	var busy *leasehold.BusyError
	if !errors.As(err, &busy) {
		return fmt.Errorf("expected a busy key, got %v", err)
	}
	say("worker 2 tries it: refused, %q holds it, %v left", busy.Holder, busy.Remaining.Round(100*time.Millisecond))

	say("worker 2 waits for it, and worker 1 releases it")
	released := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { released <- lock.Release() })
	if lease, err = rival.Acquire(ctx); err != nil {
		return err
	}
	if err := <-released; err != nil {
		return err
	}
	say("worker 2 holds it now, with a higher fence: %d", rival.Fence())

	say("somebody deletes the key behind its back")
	if err := rdb.Del(ctx, key).Err(); err != nil {
		return err
	}
	<-lease.Done()
	say("worker 2's context has ended: %v", context.Cause(lease))
	say("its Release says so too: errors.Is(err, ErrLost) = %v", errors.Is(rival.Release(), leasehold.ErrLost))
	return nil
}

// connect returns a client of the Redis at url, or of one inside this process.
func connect(url string) (rdb *redis.Client, stop func(), err error) {
	if url != "" {
		o, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, err
		}
		rdb = redis.NewClient(o)
		return rdb, func() { rdb.Close() }, nil
	}
	server, err := miniredis.Run()
	if err != nil {
		return nil, nil, err
	}
	// Its keys do not expire by themselves: its clock has to be moved on.
	clock := time.NewTicker(10 * time.Millisecond)
	done := make(chan struct{})
	// Owned by stop, which ends it.
	go func() {
		for {
			select {
			case <-clock.C:
				server.FastForward(10 * time.Millisecond)
			case <-done:
				return
			}
		}
	}()
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		rdb.Close()
		close(done)
		clock.Stop()
		server.Close()
	}, nil
}
