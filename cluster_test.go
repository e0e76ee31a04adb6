package leasehold_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

// A key on each master, with and without hash tags; and slots that move.
func TestEveryCall_OverACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	rdb := cluster.Client(t)
	keys := []string{"orders:tagged{42}"}
	for _, node := range cluster.Nodes() {
		for n := 0; ; n++ {
			if key := "orders:" + strconv.Itoa(n); cluster.Owner(t, key) == node {
				keys = append(keys, key)
				break
			}
		}
	}
	for _, key := range keys {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			everyCall(t, rdb, key)
		})
	}
	for name, test := range map[string]func(t *testing.T, cluster *redistest.Cluster){
		"a slot moves": slotMoves, "release in a slot that moves": releaseInASlotThatMoves,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, cluster)
		})
	}
}

// While a slot moves, leases in it go on and can be released, whether or not their
// key has moved already; an acquire waits until the slot has moved.
func slotMoves(t *testing.T, cluster *redistest.Cluster) {
	const ttl = 20 * time.Second
	rdb, w := cluster.Client(t), newWatcher()
	rdb.AddHook(w)
	c := newClient(t, rdb, leasehold.WithTTL(ttl), leasehold.WithRenewEvery(100*time.Millisecond))
	locks := map[string]*leasehold.Lock{}
	leases := map[string]context.Context{}
	for _, name := range []string{"stays", "moves", "released", "moved and released"} {
		locks[name] = c.NewLock("{slot}" + name)
		leases[name] = acquire(t, locks[name])
	}
	renew := func() {
		for name, l := range locks {
			renewsFromNowOn(t, l, leases[name], ttl)
		}
	}
	release := func(name string) {
		require.NoError(t, locks[name].Release(), name)
		delete(locks, name)
	}

	m := cluster.Migrate(t, "{slot}")
	renew()
	assert.ErrorIs(t, second(c.NewLock("{slot}moves").TryAcquire(t.Context())), leasehold.ErrBusy)
	err := second(c.NewLock("{slot}absent").TryAcquire(t.Context()))
	assert.True(t, redis.HasErrorPrefix(err, "TRYAGAIN"), err)
	assert.NotErrorIs(t, err, leasehold.ErrBusy)
	release("released")

	// Only the keys: their records are on the other node.
	m.Move(t, "{slot}moves")
	m.Move(t, "{slot}moved and released")
	assert.ElementsMatch(t, []string{"{slot}moves", "{slot}moved and released"}, m.Keys(t, m.To))
	renew()
	release("moved and released")
	assert.Equal(t, []string{"{slot}moves"}, m.Keys(t, m.To))

	type waiter struct {
		lock  *leasehold.Lock
		lease context.Context
	}
	waiting := map[string]chan waiter{"absent": make(chan waiter, 1), "moves": make(chan waiter, 1)}
	for name, got := range waiting {
		// Owned by the test, which receives; ends with the Acquire.
		go func() {
			l := c.NewLock("{slot}" + name)
			lease, err := l.Acquire(t.Context())
			assert.NoError(t, err, name)
			got <- waiter{l, lease}
		}()
	}
	refused := w.count(w.refused, "TRYAGAIN")
	eventually(t, func() bool { return w.count(w.refused, "TRYAGAIN") >= refused+4 }, "waits go on over TRYAGAIN")
	assert.Empty(t, waiting["absent"])

	fence := locks["moves"].Fence()
	m.End(t)
	absent := <-waiting["absent"]
	require.NoError(t, absent.lease.Err())
	require.NoError(t, absent.lock.Release())
	renew()
	assert.Empty(t, waiting["moves"])
	release("moves")
	next := <-waiting["moves"]
	require.NoError(t, next.lease.Err())
	assert.Greater(t, next.lock.Fence(), fence, "the record has moved too")
	require.NoError(t, next.lock.Release())
	release("stays")
	assert.Empty(t, slices.DeleteFunc(m.Keys(t, m.To), func(key string) bool { return strings.Contains(key, ":leasehold:record") }))
}

// An acquire's first reply is lost, so that the release touches the record too. It
// cannot while the two are on different nodes, and frees the key all the same.
func releaseInASlotThatMoves(t *testing.T, cluster *redistest.Cluster) {
	const key, record = "{moving}key", "{moving}key:leasehold:record"
	wire := redistest.NewWire()
	rdb := cluster.Client(t, func(o *redis.ClusterOptions) {
		o.NewClient = func(o *redis.Options) *redis.Client {
			wire.Attach(o)
			return redis.NewClient(o)
		}
	})
	w := newWatcher()
	rdb.AddHook(w)
	c := newClient(t, rdb, leasehold.WithTTL(20*time.Second))
	l := c.NewLock(key)
	acquire(t, l)
	require.NoError(t, l.Release()) // the node has learnt the scripts
	next(wire, redistest.LoseReply)
	acquire(t, l)
	token := l.Token()

	m := cluster.Migrate(t, key)
	m.Move(t, key)
	require.NoError(t, l.Release())
	assert.Empty(t, m.Keys(t, m.To), "the key is gone")
	assert.Positive(t, w.count(w.refused, "TRYAGAIN"), "by the shorter way")
	assert.Equal(t, []string{record}, m.Keys(t, m.From))

	m.End(t)
	eventually(t, func() bool {
		_, dead, _ := strings.Cut(rdb.Get(t.Context(), record).Val(), token) // the grant's, then the dead one
		return strings.Contains(dead, token)
	}, "clean-up makes the value dead as soon as the slot has moved")
	assert.NotErrorIs(t, second(c.NewLock(key).TryAcquire(t.Context())), leasehold.ErrBusy)
}
