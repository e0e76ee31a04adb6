package leasehold_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

// The two below are for comparison with each other, in one run:
//
//	go test -run '^$' -bench 'AcquireRelease|BareSetNX' -count 10 .

// BenchmarkAcquireRelease takes and releases a free key.
func BenchmarkAcquireRelease(b *testing.B) {
	c := leasehold.New(redistest.NewServer(b).Client(b))
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l := c.NewLock(key)
		if _, err := l.Acquire(ctx); err != nil {
			b.Fatal(err)
		}
		if err := l.Release(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBareSetNX does the same with what go-redis gives: SET NX PX, and a
// script that compares and deletes. It has no fence, no renewal, no bound but the
// client's timeouts, and repeats what was lost.
func BenchmarkBareSetNX(b *testing.B) {
	rdb := redistest.NewServer(b).Client(b)
	ctx := context.Background()
	compareAndDelete := redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)
	if err := compareAndDelete.Load(ctx, rdb).Err(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if ok, err := rdb.SetNX(ctx, key, "token", 10*time.Second).Result(); err != nil || !ok {
			b.Fatal(ok, err)
		}
		if err := compareAndDelete.EvalSha(ctx, rdb, []string{key}, "token").Err(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBareGoroutine is BenchmarkBareSetNX with each call on a goroutine of its
// own: the part of the difference that the door has to cost, because a call to a
// server that hangs does not come back with its context.
func BenchmarkBareGoroutine(b *testing.B) {
	rdb := redistest.NewServer(b).Client(b)
	ctx := context.Background()
	compareAndDelete := redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)
	if err := compareAndDelete.Load(ctx, rdb).Err(); err != nil {
		b.Fatal(err)
	}
	elsewhere := func(call func() error) error {
		done := make(chan error)
		go func() { done <- call() }()
		return <-done
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := elsewhere(func() error { return rdb.SetNX(ctx, key, "token", 10*time.Second).Err() }); err != nil {
			b.Fatal(err)
		}
		if err := elsewhere(func() error { return compareAndDelete.EvalSha(ctx, rdb, []string{key}, "token").Err() }); err != nil {
			b.Fatal(err)
		}
	}
}
