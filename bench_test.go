package leasehold_test

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
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

// BenchmarkHeld holds locks that nobody uses, and reports what one costs: memory,
// goroutines that are parked for it, and commands in each half TTL, by the server's
// own count. None may be lost.
func BenchmarkHeld(b *testing.B) {
	for _, c := range []struct {
		locks int
		held  time.Duration
	}{{10_000, 30 * time.Second}, {1_000, time.Minute}} {
		b.Run(fmt.Sprintf("locks=%d/%v", c.locks, c.held), func(b *testing.B) {
			s := redistest.NewServer(b)
			client := leasehold.New(s.Client(b))
			const ttl = 10 * time.Second // the default
			for b.Loop() {
				before, goroutines := heap(), runtime.NumGoroutine()
				leases := make([]context.Context, c.locks)
				locks := make([]*leasehold.Lock, c.locks)
				for n := range locks {
					locks[n] = client.NewLock(fmt.Sprint("held:", n))
					leases[n] = acquire(b, locks[n])
				}
				b.ReportMetric(float64(heap()-before)/float64(c.locks), "B/lock")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(c.locks), "goroutines/lock")
				scripts := evalCalls(b, s.Client(b))
				time.Sleep(c.held)
				halfTTLs := float64(c.held) / float64(ttl/2)
				b.ReportMetric(float64(evalCalls(b, s.Client(b))-scripts)/float64(c.locks)/halfTTLs, "commands/lock/halfTTL")
				lost := 0
				for n := range locks {
					if leases[n].Err() != nil {
						lost++
					}
				}
				b.ReportMetric(float64(lost), "lost")
				if err := client.Close(); err != nil || lost > 0 {
					b.Fatal(lost, err)
				}
			}
		})
	}
}

// heap returns the bytes that are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// evalCalls returns how many scripts a server has carried out.
func evalCalls(t testing.TB, rdb *redis.Client) int {
	t.Helper()
	stats, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, match := range regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		n, _ := strconv.Atoi(match[1])
		sum += n
	}
	return sum
}
