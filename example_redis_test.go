package leasehold_test

import (
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// exampleRedis returns a client of a Redis inside the process, for the examples. Its
// keys do not expire by themselves, so its clock is moved on.
func exampleRedis() (rdb *redis.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	done := make(chan struct{})
	// Owned by stop, which ends it.
	go func() {
		clock := time.NewTicker(10 * time.Millisecond)
		defer clock.Stop()
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
		close(done)
		_ = rdb.Close()
		server.Close()
	}
}
