package leasehold_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
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

// next gives the next scripts that go over a wire their fates, one each. What
// comes after them passes.
func next(w *redistest.Wire, fates ...redistest.Fate) {
	var mu sync.Mutex
	w.Decide(func(request string) redistest.Fate {
		mu.Lock()
		defer mu.Unlock()
		if len(fates) == 0 || !strings.Contains(request, "eval") {
			return redistest.Pass
		}
		fate := fates[0]
		fates = fates[1:]
		return fate
	})
}

// warm has the server learn the scripts, so that each is one request afterwards.
func warm(t testing.TB, c *leasehold.Client) {
	t.Helper()
	l := c.NewLock("warm")
	acquire(t, l)
	require.NoError(t, l.Release())
}

// wired returns a client of go-redis's defaults whose connections go over a wire,
// and one whose do not.
func wired(t testing.TB, r redistest.Redis, opts ...leasehold.Option) (*leasehold.Client, *redistest.Wire, *redis.Client) {
	t.Helper()
	wire := redistest.NewWire()
	c := newClient(t, r.Client(t, wire.Attach), opts...)
	warm(t, c)
	return c, wire, r.Client(t)
}

// withoutReply are the ways in which a request is not answered.
var withoutReply = map[string]redistest.Fate{
	"reply lost": redistest.LoseReply, "reply swallowed": redistest.SwallowReply, "request lost": redistest.LoseRequest,
}

func TestG7_AcquireWithoutItsReplyIsNotBusy(t *testing.T) {
	for name, fate := range withoutReply {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, r redistest.Redis) {
				c, wire, rdb := wired(t, r)
				next(wire, fate)
				l := c.NewLock(key)
				lease, err := l.TryAcquire(t.Context())
				require.NoError(t, err, "the key is ours")
				assert.NoError(t, lease.Err())
				assert.Equal(t, l.Token(), get(t, rdb, key))
				require.NoError(t, l.Release())
				assert.Empty(t, get(t, rdb, key))
			})
		})
	}
}

// The first copy of an acquire is held back, a second one gets the key; the key is
// released, somebody else has it and releases it; then the first copy arrives.
func TestG5_LateCopyOfAnAcquireTakesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, wire, rdb := wired(t, r)
		next(wire, redistest.HoldRequest)
		l := c.NewLock(key)
		acquire(t, l)
		require.NoError(t, l.Release())

		other := newClient(t, rdb).NewLock(key)
		acquire(t, other)
		require.NoError(t, other.Release())

		wire.Deliver()
		assert.Empty(t, get(t, rdb, key), "a late copy of the acquire made an orphan")
	})
}

// Given up, in each way in which an acquire can be under way. The key must not
// stay, although its TTL is an hour.
func TestG5_GivenUpAcquireLeavesNoKey(t *testing.T) {
	for name, fate := range map[string]redistest.Fate{
		"reply lost": redistest.LoseReply, "reply swallowed": redistest.SwallowReply,
		"request lost": redistest.LoseRequest, "request late": redistest.HoldRequest,
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, r redistest.Redis) {
				c, wire, rdb := wired(t, r, leasehold.WithTTL(time.Hour))
				ctx, cancel := context.WithCancel(t.Context())
				var once sync.Once
				wire.Decide(func(request string) redistest.Fate {
					what := redistest.Pass
					if strings.Contains(request, "eval") {
						once.Do(func() { what = fate; cancel() })
					}
					return what
				})
				_, err := c.NewLock(key).Acquire(ctx)
				require.ErrorIs(t, err, context.Canceled)
				assert.NotErrorIs(t, err, leasehold.ErrBusy)
				dead := func() bool { return len(get(t, rdb, record)) > 0 || fate == redistest.LoseRequest }
				eventually(t, func() bool { return dead() && get(t, rdb, key) == "" }, "clean-up")
				wire.Deliver()
				assert.Empty(t, get(t, rdb, key), "the acquire came after its clean-up")
				require.NoError(t, c.Close())
				assert.Empty(t, get(t, rdb, key))
			})
		})
	}
}

// Redis hangs while an acquire is given up, and answers again later: at most 1 s
// after that the key is gone.
func TestG5_HangingRedisIsCleanedUpAfter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, _, rdb := wired(t, r, leasehold.WithTTL(time.Hour))
		r.Pause(t)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := c.NewLock(key).TryAcquire(ctx)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		time.Sleep(2 * time.Second)
		r.Resume(t)
		resumed := time.Now()
		eventually(t, func() bool { return get(t, rdb, key) == "" }, "clean-up")
		took := time.Since(resumed)
		if slack(r) == 0 {
			assert.LessOrEqual(t, took, time.Second)
		}
		require.NoError(t, c.Close())
		assert.Empty(t, get(t, rdb, key))
	})
}

// An acquire that never got a connection was never sent: nothing is to clean up.
func TestG5_UnsentAcquireNeedsNoCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		rdb := b.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
		c := newClient(t, rdb)
		conn := rdb.Conn()
		require.NoError(t, conn.Ping(t.Context()).Err())
		_, err := c.NewLock(key).TryAcquire(t.Context())
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		time.Sleep(time.Second)
		var commands []string
		b.OnCommand(func(cmd string, _ []string) { commands = append(commands, cmd) })
		require.NoError(t, conn.Close())
		time.Sleep(time.Minute)
		assert.Empty(t, commands)
	})
}

func TestG7_ReleaseWithoutItsReply(t *testing.T) {
	for name, fate := range withoutReply {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, r redistest.Redis) {
				c, wire, rdb := wired(t, r)

				l := c.NewLock(key)
				acquire(t, l)
				next(wire, fate)
				require.NoError(t, l.Release(), "it worked")
				assert.Empty(t, get(t, rdb, key))

				acquire(t, l)
				next(wire, fate, fate, fate)
				err := l.Release()
				require.Error(t, err)
				require.NotErrorIs(t, err, leasehold.ErrLost)
				require.NotErrorIs(t, err, leasehold.ErrNotHeld)
				assert.Contains(t, err.Error(), `leasehold: release "orders:42": `)
				assert.Empty(t, l.Token(), "not held after a Release that failed")

				wire.Decide(nil)
				require.NoError(t, l.Release(), "a second Release repeats the first")
				assert.ErrorIs(t, l.Release(), leasehold.ErrNotHeld)
				assert.Empty(t, get(t, rdb, key))
			})
		})
	}
}

// The reply to a release is lost, and before the second try another holder has
// come: it is untouched, and the release has worked.
func TestG7_ReleaseRepeatedOverAnotherHolder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, wire, rdb := wired(t, r)
		l := c.NewLock(key)
		acquire(t, l)
		next(wire, redistest.LoseReply, redistest.LoseReply, redistest.LoseReply)
		require.Error(t, l.Release())
		other := newClient(t, rdb).NewLock(key)
		held := acquire(t, other)
		require.NoError(t, l.Release())
		assert.NoError(t, held.Err())
		assert.Equal(t, other.Token(), get(t, rdb, key))
		require.NoError(t, other.Release())
	})
}

// The first try's answer is definite: the key was gone before it.
func TestG7_ReleaseOfAKeyThatIsGone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, wire, rdb := wired(t, r)
		l := c.NewLock(key)
		acquire(t, l)
		rdb.Del(t.Context(), key)
		err := l.Release()
		require.ErrorIs(t, err, leasehold.ErrLost)
		assert.Contains(t, err.Error(), `"orders:42"`)
		assert.ErrorIs(t, l.Release(), leasehold.ErrNotHeld, "told once")

		acquire(t, l)
		rdb.Del(t.Context(), key)
		wire.Down()
		_, err = c.NewLock("other").TryAcquire(t.Context()) // meets the pool's dead connection
		require.Error(t, err)
		require.Error(t, l.Release())
		wire.Up()
		assert.ErrorIs(t, l.Release(), leasehold.ErrLost, "no try of the first Release was sent")
	})
}

// One failed renewal is not a loss; the lease goes on over it.
func TestG9_FailedRenewalIsNotALoss(t *testing.T) {
	for name, fate := range map[string]redistest.Fate{
		"reply lost": redistest.LoseReply, "reply swallowed": redistest.SwallowReply,
		"request lost": redistest.LoseRequest, "request late": redistest.HoldRequest,
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, r redistest.Redis) {
				c, wire, rdb := wired(t, r, leasehold.WithTTL(3*time.Second))
				l := c.NewLock(key)
				lease := acquire(t, l)
				next(wire, fate)
				time.Sleep(4 * time.Second)
				require.NoError(t, lease.Err())
				wire.Deliver()
				require.NoError(t, l.Release())
				assert.Empty(t, get(t, rdb, key))
			})
		})
	}
}

// Redis is away for most of the time between a renewal and the deadline.
func TestG9_RenewalIsTriedUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		c, wire, _ := wired(t, b, leasehold.WithTTL(10*time.Second))
		l := c.NewLock(key)
		lease := acquire(t, l)
		wire.Down()
		time.Sleep(8500 * time.Millisecond)
		wire.Up()
		time.Sleep(10 * time.Second)
		assert.NoError(t, lease.Err())
		require.NoError(t, l.Release())
	})
}

// A loss is told once, with its reason, and ended leases are not asked about again.
func TestG9_LossIsToldOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		rdb := r.Client(t)
		var log lockedLog
		c := newClient(t, rdb, leasehold.WithTTL(2*time.Second), leasehold.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		l := c.NewLock(key)
		lease := acquire(t, l)
		fence, token := l.Fence(), l.Token()
		rdb.Del(t.Context(), key)
		ends(t, lease)
		require.ErrorIs(t, context.Cause(lease), leasehold.ErrLost)
		eventually(t, func() bool { return log.count("lease lost") == 1 }, "the log")
		assert.NotContains(t, log.String(), token)
		assert.Equal(t, fence, l.Fence(), "kept over a loss")
		assert.ErrorIs(t, l.Release(), leasehold.ErrLost)
		assert.Zero(t, l.Fence())
		assert.ErrorIs(t, l.Release(), leasehold.ErrNotHeld)
		assert.Equal(t, 1, log.count("lease lost"))

		acquire(t, l)
		rdb.Del(t.Context(), key)
		eventually(t, func() bool { return l.Remaining() == 0 }, "the loss")
		lease = acquire(t, l)
		assert.NoError(t, lease.Err(), "a Lock can be used again after a loss")
		require.NoError(t, l.Release())
	})
}

// A lockedLog is a log that a test may read while it is written.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lockedLog) count(what string) int { return strings.Count(l.String(), what) }

// The ctx given to Acquire bounds the lease: renewal stops, the key runs out, and
// the log says so once.
func TestLease_EndsWithItsParent(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		const ttl = time.Second
		rdb := r.Client(t)
		var log lockedLog
		c := newClient(t, rdb, leasehold.WithTTL(ttl), leasehold.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		why := errors.New("the request was cancelled")

		l := c.NewLock(key)
		parent, cancel := context.WithCancelCause(t.Context())
		lease, err := l.Acquire(parent)
		require.NoError(t, err)
		cancel(why)
		ends(t, lease)
		assert.Equal(t, why, context.Cause(lease))
		assert.Equal(t, l.Token(), get(t, rdb, key), "the key is still ours")
		require.NoError(t, l.Release(), "so its Release is a release")
		assert.Equal(t, 1, log.count("before Release"))

		parent, cancel = context.WithCancelCause(t.Context())
		_, err = l.Acquire(parent)
		require.NoError(t, err)
		cancel(why)
		_, err = l.TryAcquire(t.Context())
		assert.ErrorIs(t, err, leasehold.ErrInUse, "it still holds the key")
		eventually(t, func() bool { return get(t, rdb, key) == "" }, "the key runs out")
		assert.ErrorIs(t, l.Release(), leasehold.ErrLost)
		assert.Equal(t, 2, log.count("before Release"))
	})
}

func TestLease_WithoutRenewalEndsAtItsDeadline(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		const ttl = 300 * time.Millisecond
		c := newClient(t, r.Client(t), leasehold.WithTTL(ttl), leasehold.WithoutRenewal())
		l := c.NewLock(key)
		began := time.Now()
		lease := acquire(t, l)
		ends(t, lease)
		if slack(r) == 0 {
			assert.Equal(t, ttl-drift(ttl), time.Since(began))
		}
		assert.ErrorIs(t, context.Cause(lease), leasehold.ErrLost)
		assert.ErrorIs(t, l.Release(), leasehold.ErrLost)
	})
}

// The loss of an outer lease ends the context of the inner one, and is no loss of
// that one, also where it comes in the midst of a renewal.
func TestLease_InnerIsNotLostWithTheOuter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		rdb := b.Client(t)
		c := newClient(t, rdb, leasehold.WithTTL(10*time.Second))
		outer, inner := c.NewLock("outer", leasehold.WithoutRenewal()), c.NewLock("inner")
		ctx := acquire(t, outer)
		time.Sleep(4700 * time.Millisecond)
		lease, err := inner.Acquire(ctx)
		require.NoError(t, err)
		time.Sleep(4950 * time.Millisecond) // the inner renews at 9.7 s, the outer ends at 9.898 s
		require.NoError(t, lease.Err())
		b.Pause(t)
		time.Sleep(3 * time.Second)
		b.Resume(t)
		var lost *leasehold.LostError
		require.ErrorAs(t, context.Cause(lease), &lost)
		assert.Equal(t, "outer", lost.Key)
		assert.Positive(t, inner.Remaining())
		require.NoError(t, inner.Release())
		assert.ErrorIs(t, outer.Release(), leasehold.ErrLost)
	})
}

// A release makes the value dead in the same script, where an acquire of it is
// unanswered: nothing is left for clean-up.
func TestG5_ReleaseSettlesWhatIsUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		c, wire, rdb := wired(t, b)
		next(wire, redistest.LoseReply)
		l := c.NewLock(key)
		acquire(t, l)
		var scripts atomic.Int32
		b.OnCommand(func(cmd string, _ []string) {
			if cmd == "EVALSHA" {
				scripts.Add(1)
			}
		})
		token := l.Token()
		require.NoError(t, l.Release())
		assert.Contains(t, get(t, rdb, record), " "+token+" ", "among the dead")
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, scripts.Load())
	})
}
