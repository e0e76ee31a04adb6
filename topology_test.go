package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

// topologyTTL is renewed ten times before it is over, so that a slow machine loses
// no lease.
const topologyTTL = 4 * time.Second

// A user makes the library's calls on one key, with whichever client of go-redis,
// and sees what the key's other users would see.
type user struct {
	*testing.T
	rdb redis.UniversalClient
	key string
	c   *leasehold.Client
}

// everyCall makes every call of the library.
func everyCall(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	u := &user{t, rdb, key, newClient(t, rdb, leasehold.WithTTL(topologyTTL),
		leasehold.WithRenewEvery(topologyTTL/10), leasehold.WithMetadata("worker 7"))}
	u.acquiresRenewsReleases()
	u.worksWithALease()
	u.hearsOfALoss()
	u.closes()
}

// value is what is in the key, "" where nothing is.
func (u *user) value() string {
	u.Helper()
	value, err := u.rdb.Get(context.Background(), u.key).Result()
	if err != redis.Nil {
		require.NoError(u, err)
	}
	return value
}

// waits begins an Acquire, whose error is sent when it has ended.
func (u *user) waits(l *leasehold.Lock) <-chan error {
	done := make(chan error, 1)
	// Owned by the test, which receives; ends with the Acquire.
	go func() { done <- second(l.Acquire(u.Context())) }()
	return done
}

func (u *user) acquiresRenewsReleases() {
	l := u.c.NewLock(u.key)
	lease := acquire(u, l)
	began, fence := time.Now(), l.Fence()
	assert.Positive(u, fence)
	assert.Equal(u, l.Token()+" worker 7", u.value())

	other := u.c.NewLock(u.key, leasehold.WithWait(50*time.Millisecond))
	for call, acquire := range map[string]func(context.Context) (context.Context, error){
		"TryAcquire": other.TryAcquire, "Acquire": other.Acquire,
	} {
		var busy *leasehold.BusyError
		require.ErrorAs(u, second(acquire(u.Context())), &busy, call)
		assert.Equal(u, "worker 7", busy.Holder)
		assert.Equal(u, u.key, busy.Key)
		assert.Positive(u, busy.Remaining)
	}
	next := u.c.NewLock(u.key)
	waits := u.waits(next)

	select {
	case <-lease.Done():
		u.Fatal("lost although it is renewed: ", context.Cause(lease))
	case err := <-waits:
		u.Fatal("two at once, or a wait that ended: ", err)
	case <-time.After(time.Until(began.Add(topologyTTL * 5 / 4))):
	}
	assert.NoError(u, lease.Err())
	assert.Positive(u, l.Remaining())
	assert.Equal(u, l.Token()+" worker 7", u.value(), "beyond the TTL")

	require.NoError(u, l.Release())
	assert.Equal(u, context.Canceled, context.Cause(lease))
	require.NoError(u, <-waits)
	assert.Greater(u, next.Fence(), fence)
	require.NoError(u, next.Release())
	assert.ErrorIs(u, next.Release(), leasehold.ErrNotHeld)
	assert.Empty(u, u.value())
}

func (u *user) worksWithALease() {
	l := u.c.NewLock(u.key)
	errWork := errors.New("work failed")
	err := l.WithLease(u.Context(), func(ctx context.Context) error {
		fence, ok := leasehold.FenceFrom(ctx, u.key)
		assert.True(u, ok)
		assert.Equal(u, l.Fence(), fence)
		assert.Equal(u, l.Token()+" worker 7", u.value())
		return errWork
	})
	assert.Equal(u, errWork, err)
	assert.Empty(u, u.value())
}

func (u *user) hearsOfALoss() {
	l := u.c.NewLock(u.key)
	lease := acquire(u, l)
	require.EqualValues(u, 1, u.rdb.Del(u.Context(), u.key).Val())
	ends(u, lease)
	var lost *leasehold.LostError
	require.ErrorAs(u, context.Cause(lease), &lost)
	assert.Equal(u, leasehold.LossGone, lost.Reason)
	assert.ErrorIs(u, l.Release(), leasehold.ErrLost)
	assert.Empty(u, u.value())
	acquire(u, l)
	require.NoError(u, l.Release())
}

func (u *user) closes() {
	l := u.c.NewLock(u.key)
	lease := acquire(u, l)
	waits := u.waits(u.c.NewLock(u.key))
	require.NoError(u, u.c.Close())
	assert.ErrorIs(u, <-waits, leasehold.ErrClosed)
	assert.ErrorIs(u, context.Cause(lease), leasehold.ErrClosed)
	assert.Empty(u, u.value())
	assert.NoError(u, l.Release(), "Close has released it")
	assert.ErrorIs(u, second(l.TryAcquire(u.Context())), leasehold.ErrClosed)
}

// renewsFromNowOn waits until a renewal that was sent after now is confirmed.
func renewsFromNowOn(t testing.TB, l *leasehold.Lock, lease context.Context, ttl time.Duration) {
	t.Helper()
	from := time.Now()
	eventually(t, func() bool {
		require.NoError(t, lease.Err(), context.Cause(lease))
		remaining := l.Remaining()
		return time.Now().Add(remaining).After(from.Add(ttl - drift(ttl)))
	}, "a renewal")
}

// A watcher is a hook that counts what go-redis is given and what comes of it, and
// looks at everything a hook may look at.
type watcher struct {
	mu       sync.Mutex
	sent     map[string]int // by a command's name
	refused  map[string]int // by an answer's first word
	mistaken []string       // what was not as it should be
}

func newWatcher() *watcher { return &watcher{sent: map[string]int{}, refused: map[string]int{}} }

func (w *watcher) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *watcher) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := slices.Clone(cmd.Args())
		err := next(ctx, cmd)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sent[cmd.Name()]++
		if err != nil {
			word, _, _ := strings.Cut(err.Error(), " ")
			w.refused[word]++
		}
		if !slices.Equal(args, cmd.Args()) || len(args) == 0 || fmt.Sprint(args[0]) != cmd.Name() {
			w.mistaken = append(w.mistaken, fmt.Sprintf("%v became %v", args, cmd.Args()))
		}
		if text := cmd.String(); cmd.Name() == "evalsha" &&
			!strings.HasPrefix(text, strings.Trim(fmt.Sprint(args), "[]")) {
			w.mistaken = append(w.mistaken, fmt.Sprintf("%v says %q", args, text))
		}
		return err
	}
}

func (w *watcher) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w *watcher) count(counted map[string]int, what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return counted[what]
}

func TestEveryCall_OverOneServer(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	for name, protocol := range map[string]int{"RESP2": 2, "RESP3": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := server.Client(t, func(o *redis.Options) { o.Protocol = protocol })
			hello, err := rdb.Do(t.Context(), "CLIENT", "INFO").Text()
			require.NoError(t, err)
			assert.Contains(t, hello, fmt.Sprintf("resp=%d", protocol))
			everyCall(t, rdb, "orders:"+name)
		})
	}
	t.Run("hooks", func(t *testing.T) {
		t.Parallel()
		rdb, w := server.Client(t), newWatcher()
		rdb.AddHook(w)
		everyCall(t, rdb, "orders:hooks")
		assert.Empty(t, w.mistaken)
		assert.Positive(t, w.count(w.sent, "evalsha"))
	})
}

// Keys of both servers, each with its record beside it.
func TestEveryCall_OverARing(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.NewServer(t), redistest.NewServer(t)}
	rdb := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"one": servers[0].Addr(), "two": servers[1].Addr()},
		// By default 500 ms and three failures in a row have a Ring give up on a server.
		HeartbeatFrequency: time.Minute,
	})
	t.Cleanup(func() { _ = rdb.Close() })

	var keys []string
	for _, server := range servers {
		keys = append(keys, keyOn(t, rdb, server.Client(t)))
	}
	for _, key := range append(keys, "{orders}:42") {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			everyCall(t, rdb, key)
		})
	}
}

// keyOn returns a key whose lock is on a server.
func keyOn(t *testing.T, rdb redis.UniversalClient, server *redis.Client) string {
	t.Helper()
	c := newClient(t, rdb)
	for n := range 1000 {
		key := "orders:" + strconv.Itoa(n)
		l := c.NewLock(key)
		acquire(t, l)
		found := server.Exists(t.Context(), key).Val() == 1
		if found {
			assert.EqualValues(t, 1, server.Exists(t.Context(), "{"+key+"}:leasehold:record:").Val(), "its record beside it")
		}
		require.NoError(t, l.Release())
		if found {
			return key
		}
	}
	t.Fatal("no key of a thousand is on the server")
	return ""
}

func TestEveryCall_OverSentinels(t *testing.T) {
	t.Parallel()
	everyCall(t, redistest.NewSentinel(t).Client(t), key)
}

// A primary fails while a lock is held of which the replica knows. The lease goes on
// at the new primary, or it is lost and its holder told so: at no time are two
// alive. Afterwards all goes on.
func TestSentinel_FailoverWhileALockIsHeld(t *testing.T) {
	for name, failover := range map[string]func(t *testing.T, s *redistest.Sentinel){
		"told to":        func(t *testing.T, s *redistest.Sentinel) { s.Failover(t) },
		"primary killed": func(t *testing.T, s *redistest.Sentinel) { s.KillPrimary(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.NewSentinel(t)
			// Renewed often and for long, so that what the failover loses of the
			// renewals is little of the TTL.
			const ttl = 30 * time.Second
			locks := func() *leasehold.Client {
				return newClient(t, s.Client(t), leasehold.WithTTL(ttl), leasehold.WithRenewEvery(ttl/100))
			}
			l, contender := locks().NewLock(key), locks().NewLock(key)
			lease := acquire(t, l)
			fence, token := l.Fence(), l.Token()
			replicated(t, s.Client(t))
			require.Equal(t, token, get(t, s.Replica.Client(t), key))

			var released atomic.Bool
			got := make(chan context.Context, 1)
			// Owned by the test, which receives; ends with the Acquire.
			go func() {
				next, err := contender.Acquire(t.Context())
				assert.NoError(t, err)
				assert.Error(t, lease.Err(), "two leases at once")
				assert.True(t, released.Load() || errors.Is(context.Cause(lease), leasehold.ErrLost), "the holder was not told")
				got <- next
			}()
			failover(t, s)

			eventually(t, func() bool {
				return lease.Err() != nil || s.Replica.Client(t).PTTL(t.Context(), key).Val() > ttl-ttl/10
			}, "renewed at the new primary, or lost")
			released.Store(true)
			if lease.Err() == nil {
				t.Log("the lease has survived")
				assert.Equal(t, token, get(t, s.Replica.Client(t), key))
				require.NoError(t, l.Release())
			} else {
				t.Log("the lease was lost: ", context.Cause(lease))
				assert.ErrorIs(t, l.Release(), leasehold.ErrLost)
			}
			next := <-got
			assert.NoError(t, next.Err())
			assert.Greater(t, contender.Fence(), fence)
			require.NoError(t, contender.Release())
			acquire(t, l)
			require.NoError(t, l.Release())
			assert.Empty(t, get(t, s.Replica.Client(t), key))
		})
	}
}

// replicated waits until the replica has all that the primary had. WAIT counts for
// the connection that has written.
func replicated(t *testing.T, rdb *redis.Client) {
	t.Helper()
	conn := rdb.Conn()
	defer conn.Close()
	require.NoError(t, conn.Set(t.Context(), "last", "", time.Minute).Err())
	require.EqualValues(t, 1, conn.Wait(t.Context(), 1, 30*time.Second).Val())
}
