package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goleasehold/leasehold"
)

func name(worker int) string { return fmt.Sprintf("worker %d", worker) }

// work is a worker process. It does the tasks that it is ordered on stdin, a line
// with its units each, and tells on stdout what happens. It ends when its stdin does,
// and so never outlives the parent, however that ends.
func work(addr string, number int, unit time.Duration) error {
	signal.Ignore(os.Interrupt) // one at the terminal reaches the workers too; the parent sees to it
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	orders := make(chan int, len(tasks))
	// Owned by the process; ends with stdin; nobody waits for it.
	go func() {
		defer close(orders)
		defer cancel()
		for {
			var units int
			if _, err := fmt.Scan(&units); err != nil {
				return
			}
			orders <- units
		}
	}()

	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locks := leasehold.New(rdb, leasehold.WithTTL(ttlUnits*unit), leasehold.WithMetadata(name(number)))
	defer locks.Close()
	for units := range orders {
		err := do(ctx, locks.NewLock(key), units, unit, func(e event) error {
			e.Worker, e.Units = number, units
			return json.NewEncoder(os.Stdout).Encode(e)
		})
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", name(number), err)
		}
	}
	return nil
}

// do does one task, while it holds the lock.
func do(ctx context.Context, lock *leasehold.Lock, units int, unit time.Duration, tell func(event) error) error {
	if err := tell(event{What: waits, At: time.Now()}); err != nil {
		return err
	}
	ctx, err := lock.Acquire(ctx) // from here on ctx ends the moment the lease is lost
	if err != nil {
		return err
	}
	defer lock.Release() // if this fails, the TTL frees the key

	if err := tell(event{What: holds, At: time.Now(), Fence: lock.Fence()}); err != nil {
		return err
	}
	for range units {
		select {
		case <-time.After(unit): // a unit of work
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	// Before what cannot be undone, ask the lease's own Err, which compares the clocks.
	doneAt := time.Now()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return tell(event{What: done, At: doneAt})
}
