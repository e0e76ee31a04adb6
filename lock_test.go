package leasehold_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

// TestMain runs more tests at once than there are cores: those on a redis-server
// mostly wait for a lease's time to pass.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for what must happen, on a slow machine.
const patience = 90 * time.Second

// key is the key that most tests lock; record is its auxiliary key.
const (
	key    = "orders:42"
	record = "{orders:42}:leasehold:record:"
)

// drift is what a lease ends before its TTL, as documented.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// eventually polls until ok, with fake time in a bubble.
func eventually(t testing.TB, ok func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// slack is how much later than promised a test may find something: not at all in a
// bubble, generously where the machine may be slow.
func slack(r redistest.Redis) time.Duration {
	if _, bubble := r.(*redistest.Bubble); bubble {
		return 0
	}
	return 3 * time.Second
}

// ends waits for a context's end.
func ends(t testing.TB, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		t.Fatal("the context does not end")
	}
}

// newClient returns a Client that is closed at the test's end, so that its clean-up
// does not outlive a bubble.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...leasehold.Option) *leasehold.Client {
	c := leasehold.New(rdb, opts...)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func acquire(t testing.TB, l *leasehold.Lock) context.Context {
	t.Helper()
	ctx, err := l.Acquire(t.Context())
	require.NoError(t, err)
	return ctx
}

func get(t testing.TB, rdb *redis.Client, key string) string {
	t.Helper()
	value, err := rdb.Get(context.Background(), key).Result()
	if err != redis.Nil {
		require.NoError(t, err)
	}
	return value
}

func TestLock_TakesKeepsAndReleases(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		rdb := r.Client(t)
		c := newClient(t, rdb, leasehold.WithTTL(2*time.Second), leasehold.WithMetadata("worker 7"))
		l := c.NewLock(key)
		assert.Equal(t, key, l.Key())
		assert.Empty(t, l.Token())
		assert.Zero(t, l.Fence())
		assert.Zero(t, l.Remaining())

		lease := acquire(t, l)
		assert.Equal(t, l.Token()+" worker 7", get(t, rdb, key))
		assert.Positive(t, l.Fence())
		assert.Greater(t, l.Remaining(), time.Duration(0))
		assert.LessOrEqual(t, l.Remaining(), 2*time.Second-drift(2*time.Second))

		time.Sleep(3 * time.Second)
		assert.NoError(t, lease.Err(), "renewal keeps the lease beyond its TTL")

		_, err := c.NewLock(key).TryAcquire(t.Context())
		var busy *leasehold.BusyError
		require.ErrorAs(t, err, &busy)
		assert.Equal(t, "worker 7", busy.Holder)
		assert.Equal(t, key, busy.Key)
		assert.Greater(t, busy.Remaining, time.Duration(0))

		require.NoError(t, l.Release())
		assert.ErrorIs(t, lease.Err(), context.Canceled)
		assert.Equal(t, context.Canceled, context.Cause(lease))
		assert.Empty(t, get(t, rdb, key))
		assert.Zero(t, l.Fence())
		assert.Empty(t, l.Token())
		assert.ErrorIs(t, l.Release(), leasehold.ErrNotHeld)

		again := acquire(t, l)
		assert.NoError(t, again.Err(), "a Lock can be used again after Release")
		require.NoError(t, l.Release())
	})
}

// Any number of contenders, of which some lose their lease by a deleted key: at
// each moment at most one context is alive.
func TestG1_OneContextAlive(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		var alive, most, held atomic.Int32
		var workers sync.WaitGroup
		for range 3 {
			c := newClient(t, r.Client(t), leasehold.WithTTL(2*time.Second))
			for range 4 {
				workers.Go(func() {
					for range 5 {
						l := c.NewLock(key)
						lease, err := l.Acquire(t.Context())
						if !assert.NoError(t, err) {
							return
						}
						now := alive.Add(1)
						for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
						}
						time.Sleep(time.Millisecond)
						assert.NoError(t, lease.Err())
						held.Add(1)
						alive.Add(-1)
						assert.NoError(t, l.Release())
					}
				})
			}
		}
		workers.Wait()
		assert.EqualValues(t, 60, held.Load())
		assert.EqualValues(t, 1, most.Load(), "two held at once")
	})
}

// The holder hears nothing from Redis any more, and its context ends at the
// deadline, before the key does.
func TestG2_ContextEndsBeforeTheKey(t *testing.T) {
	const ttl = time.Second
	hang := map[string]func(t *testing.T, r redistest.Redis, w *redistest.Wire, rdb *redis.Client){
		"Redis hangs": func(t *testing.T, r redistest.Redis, _ *redistest.Wire, _ *redis.Client) { r.Pause(t) },
		"connections go silent": func(_ *testing.T, _ redistest.Redis, w *redistest.Wire, _ *redis.Client) {
			w.Blackhole()
			w.Decide(func(string) redistest.Fate { return redistest.SwallowReply })
		},
		"the network is down": func(_ *testing.T, _ redistest.Redis, w *redistest.Wire, _ *redis.Client) { w.Down() },
		"the pool is empty": func(t *testing.T, _ redistest.Redis, _ *redistest.Wire, rdb *redis.Client) {
			occupyPool(t, rdb)
		},
	}
	for name, hang := range hang {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, r redistest.Redis) {
				wire := redistest.NewWire()
				rdb := r.Client(t, wire.Attach, func(o *redis.Options) { o.PoolSize = 1 })
				l := newClient(t, rdb, leasehold.WithTTL(ttl)).NewLock(key)
				before := time.Now()
				lease := acquire(t, l)
				after := time.Now()
				hang(t, r, wire, rdb)
				ends(t, lease)
				ended := time.Now()
				assert.GreaterOrEqual(t, ended.Sub(before), ttl-drift(ttl), "before the deadline")
				assert.Less(t, ended.Sub(after), ttl+slack(r), "the key may have expired before the context")
				if slack(r) == 0 {
					assert.Equal(t, ttl-drift(ttl), ended.Sub(after), "exactly at the deadline")
				}
				var lost *leasehold.LostError
				require.ErrorAs(t, context.Cause(lease), &lost)
				assert.Equal(t, leasehold.LossExpired, lost.Reason)
				assert.Zero(t, l.Remaining())
				assert.Empty(t, l.Token())
				r.Resume(t)
				wire.Decide(nil)
				wire.Up()
				assert.ErrorIs(t, l.Release(), leasehold.ErrLost)
			})
		})
	}
}

// occupyPool takes the only connection of a pool until the test's end.
func occupyPool(t testing.TB, rdb *redis.Client) {
	conn := rdb.Conn()
	require.NoError(t, conn.Ping(context.Background()).Err())
	t.Cleanup(func() { _ = conn.Close() })
}

func TestG3_StrangersAreLeftAlone(t *testing.T) {
	strangers := map[string]func(rdb *redis.Client){
		"another token": func(rdb *redis.Client) { rdb.Set(context.Background(), key, "stranger", 0) },
		"a list":        func(rdb *redis.Client) { rdb.Del(context.Background(), key); rdb.RPush(context.Background(), key, "x") },
	}
	for name, put := range strangers {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, r redistest.Redis) {
				rdb := r.Client(t)
				ctx := context.Background()
				c := newClient(t, rdb, leasehold.WithTTL(2*time.Second))

				renewed := c.NewLock(key)
				lease := acquire(t, renewed)
				put(rdb)
				before := rdb.Dump(ctx, key).Val()
				ends(t, lease)
				var lost *leasehold.LostError
				require.ErrorAs(t, context.Cause(lease), &lost)
				assert.Equal(t, leasehold.LossTaken, lost.Reason, "renewal")
				assert.ErrorIs(t, renewed.Release(), leasehold.ErrLost)

				rdb.Del(ctx, key)
				released := c.NewLock(key)
				acquire(t, released)
				put(rdb)
				err := released.Release()
				require.ErrorAs(t, err, &lost)
				assert.Equal(t, leasehold.LossTaken, lost.Reason, "release")
				assert.Equal(t, before, rdb.Dump(ctx, key).Val(), "the stranger's key is as it was")
				assert.EqualValues(t, -1, rdb.TTL(ctx, key).Val().Nanoseconds(), "and still without a TTL")
			})
		})
	}
}

func TestG3_RenewalNeverCreatesAKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		rdb := r.Client(t)
		l := newClient(t, rdb, leasehold.WithTTL(2*time.Second)).NewLock(key)
		lease := acquire(t, l)
		rdb.Del(context.Background(), key)
		ends(t, lease)
		var lost *leasehold.LostError
		require.ErrorAs(t, context.Cause(lease), &lost)
		assert.Equal(t, leasehold.LossGone, lost.Reason)
		assert.Empty(t, get(t, rdb, key))
	})
}

// The holder is cut off for ever, as if its process had died: its key is free one
// TTL after its last renewal.
func TestG4_DeadHoldersKeyIsFreeAfterOneTTL(t *testing.T) {
	const ttl = time.Second
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		wire := redistest.NewWire()
		dies := newClient(t, r.Client(t, wire.Attach), leasehold.WithTTL(ttl))
		other := newClient(t, r.Client(t), leasehold.WithTTL(ttl)).NewLock(key)
		acquire(t, dies.NewLock(key))
		time.Sleep(3*ttl/4 + 20*time.Millisecond) // one renewal, at TTL/2
		wire.Down()
		died := time.Now()
		acquire(t, other)
		waited := time.Since(died)
		assert.LessOrEqual(t, waited, ttl+slack(r), "later than one TTL after the last renewal")
		if slack(r) == 0 {
			assert.Greater(t, waited, 3*ttl/4-25*time.Millisecond, "before the TTL was over")
		}
		require.NoError(t, other.Release())
	})
}

func TestLock_UsedTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, redistest.NewBubble(t).Client(t))
		l := c.NewLock(key)
		acquire(t, l)
		_, err := l.Acquire(t.Context())
		assert.ErrorIs(t, err, leasehold.ErrInUse)
		_, err = l.TryAcquire(t.Context())
		assert.ErrorIs(t, err, leasehold.ErrInUse)

		waits := c.NewLock(key)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- second(waits.Acquire(ctx)) }()
		synctest.Wait()
		_, err = waits.TryAcquire(t.Context())
		assert.ErrorIs(t, err, leasehold.ErrInUse)
		assert.ErrorIs(t, waits.Release(), leasehold.ErrNotHeld, "Release during an Acquire")
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
		require.NoError(t, l.Release())
	})
}

func second[A, B any](_ A, b B) B { return b }

// An Acquire that straddles another's success on the same Lock must not get in: the
// lease it would not see could not be released any more.
func TestLock_SharedByCompetingGoroutines(t *testing.T) {
	c := newClient(t, redistest.NewServer(t).Client(t))
	l := c.NewLock(key)
	for range 1000 {
		var acquired atomic.Int32
		var workers sync.WaitGroup
		for range 4 {
			workers.Go(func() {
				switch _, err := l.TryAcquire(t.Context()); {
				case err == nil:
					acquired.Add(1)
				default:
					assert.ErrorIs(t, err, leasehold.ErrInUse)
				}
			})
		}
		workers.Wait()
		assert.EqualValues(t, 1, acquired.Load())
		require.NoError(t, l.Release())
	}
}

// Two Releases at once: one releases, the other waits for it and is told that
// there was nothing left to release.
func TestLock_ReleasedTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		l := newClient(t, b.Client(t)).NewLock(key)
		acquire(t, l)
		b.Pause(t)
		answers := make(chan error, 2)
		for range 2 {
			go func() { answers <- l.Release() }()
		}
		synctest.Wait()
		assert.Empty(t, answers, "the second waits for the first")
		b.Resume(t)
		one, other := <-answers, <-answers
		if one != nil {
			one, other = other, one
		}
		assert.NoError(t, one)
		assert.ErrorIs(t, other, leasehold.ErrNotHeld)
	})
}

// A lock here and a plain SET NX PX from anywhere exclude each other.
func TestLock_InteropWithPlainSet(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		rdb := r.Client(t)
		ctx := context.Background()
		c := newClient(t, rdb)

		require.True(t, rdb.SetNX(ctx, key, "somebody's token", time.Second).Val())
		_, err := c.NewLock(key).TryAcquire(ctx)
		var busy *leasehold.BusyError
		require.ErrorAs(t, err, &busy)
		assert.Empty(t, busy.Holder, "another program's token is not told")
		assert.Greater(t, busy.Remaining, 500*time.Millisecond)

		l := c.NewLock(key)
		acquire(t, l) // waits for the second to pass
		assert.False(t, rdb.SetNX(ctx, key, "somebody's token", time.Second).Val())
		require.NoError(t, l.Release())
		assert.True(t, rdb.SetNX(ctx, key, "somebody's token", 0).Val())

		_, err = c.NewLock(key).TryAcquire(ctx)
		require.ErrorAs(t, err, &busy)
		assert.Zero(t, busy.Remaining, "a key without a TTL")
		assert.Contains(t, err.Error(), "without a TTL")
	})
}

// After use nothing is left. In a bubble the test itself fails if a goroutine or
// timer stays.
func TestG12_NothingIsLeft(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		rdb := r.Client(t)
		require.NoError(t, rdb.Ping(context.Background()).Err())
		before := runtime.NumGoroutine()
		c := newClient(t, rdb, leasehold.WithTTL(2*time.Second))
		for n := range 20 {
			l := c.NewLock(fmt.Sprint("k", n))
			acquire(t, l)
			_, err := c.NewLock(l.Key()).TryAcquire(t.Context())
			assert.ErrorIs(t, err, leasehold.ErrBusy)
			if n == 0 {
				time.Sleep(1200 * time.Millisecond) // over a renewal
			}
			require.NoError(t, l.Release())
		}
		eventually(t, func() bool { return runtime.NumGoroutine() <= before }, "all goroutines end")
		for _, k := range rdb.Keys(context.Background(), "*").Val() {
			assert.Positive(t, rdb.PTTL(context.Background(), k).Val(), "%s has no TTL", k)
		}
	})
}

// A held lock sends one command each half TTL, and an idle Client none.
func TestG11_CommandsOfAHeldLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		var scripts atomic.Int32
		b.OnCommand(func(cmd string, _ []string) {
			if cmd == "EVALSHA" || cmd == "EVAL" {
				scripts.Add(1)
			}
		})
		l := newClient(t, b.Client(t), leasehold.WithTTL(10*time.Second)).NewLock(key)
		acquire(t, l)
		time.Sleep(11 * time.Second) // what the server did not know is loaded
		scripts.Store(0)
		time.Sleep(100 * time.Second)
		assert.EqualValues(t, 20, scripts.Load())
		require.NoError(t, l.Release())
		time.Sleep(time.Second)
		scripts.Store(0)
		time.Sleep(100 * time.Second)
		assert.Zero(t, scripts.Load())
	})
}

// Keys and metadata may be any bytes.
func TestLock_AnyBytes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		rdb := r.Client(t)
		var everyByte strings.Builder
		for n := range 256 {
			everyByte.WriteByte(byte(n))
		}
		metadata := strings.Repeat(everyByte.String(), 4)
		c := newClient(t, rdb, leasehold.WithMetadata(metadata), leasehold.WithPrefix("{app}:"))
		for _, key := range []string{
			" ", "\n", "\x00", "\xff\xfe", "a b\r\nc", "{", "}", "{}", "a{b}c}d{", everyByte.String(),
			strings.Repeat("k", 8<<10), "%s%d", "*?[a]", ":leasehold:",
		} {
			l := c.NewLock(key)
			acquire(t, l)
			assert.Equal(t, l.Token()+" "+metadata, get(t, rdb, "{app}:"+key), "%q", key)
			_, err := c.NewLock(key).TryAcquire(t.Context())
			var busy *leasehold.BusyError
			require.ErrorAs(t, err, &busy)
			assert.Equal(t, metadata, busy.Holder)
			require.NoError(t, l.Release())
			assert.Empty(t, get(t, rdb, "{app}:"+key))
		}
	})
}

// What another program has put into the key is not told as a holder's metadata.
func TestLock_StrangersValueIsNotTold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		rdb := r.Client(t)
		c := newClient(t, rdb)
		token := "519f1833-d89e-4c9e-a274-4fd39d50be47"
		for value, holder := range map[string]string{
			"secret": "", "secret word": "", "": "", token: "", token + " host 3": "host 3", token + " ": "",
			token + "x host": "", token[1:] + " host": "", "a-b-c-d-e host": "", strings.Repeat("x", 1<<20): "",
		} {
			require.NoError(t, rdb.Set(t.Context(), key, value, time.Minute).Err())
			_, err := c.NewLock(key).TryAcquire(t.Context())
			var busy *leasehold.BusyError
			require.ErrorAs(t, err, &busy)
			assert.Equal(t, holder, busy.Holder)
		}
	})
}
