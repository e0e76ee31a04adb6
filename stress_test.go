package leasehold_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
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

// stressFor is how long the stress test runs. Set LEASEHOLD_STRESS, as "10m", for
// more.
func stressFor(t testing.TB) time.Duration {
	text := os.Getenv("LEASEHOLD_STRESS")
	if text == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// A hundred goroutines of five Clients compete for one key, with contexts that are
// cancelled at random moments, pools of one connection among them, and connections
// that lose requests and replies. Never do two hold it, the fence rises, and when
// all is over nothing is left in the key, whose TTL is an hour.
func TestG1_G5_G8_Stress(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t)
	over := time.Now().Add(stressFor(t))
	var alive, held, givenUp atomic.Int32
	var lastFence atomic.Int64

	contend := func(c *leasehold.Client) {
		l := c.NewLock(key)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.N(400))*time.Millisecond)
		defer cancel()
		if _, err := l.Acquire(ctx); err != nil {
			givenUp.Add(1)
			return
		}
		assert.EqualValues(t, 1, alive.Add(1), "two hold the key")
		assert.Greater(t, l.Fence(), lastFence.Swap(l.Fence()), "the fence rises")
		held.Add(1)
		time.Sleep(time.Duration(rand.N(3)) * time.Millisecond)
		alive.Add(-1)
		for err := l.Release(); err != nil && !errors.Is(err, leasehold.ErrNotHeld); err = l.Release() {
			if !assert.NotErrorIs(t, err, leasehold.ErrLost) {
				return
			}
		}
	}

	var workers sync.WaitGroup
	var clients []*leasehold.Client
	for n := range 5 {
		wire := redistest.NewWire()
		rdb := s.Client(t, wire.Attach, func(o *redis.Options) {
			o.PoolSize = 1 + 9*(n%2)
			o.ReadTimeout = 300 * time.Millisecond
		})
		wire.Decide(func(request string) redistest.Fate {
			if !strings.Contains(request, "eval") || rand.N(20) > 0 {
				return redistest.Pass
			}
			return []redistest.Fate{redistest.LoseReply, redistest.LoseRequest, redistest.SwallowReply}[rand.N(3)]
		})
		c := newClient(t, rdb, leasehold.WithTTL(time.Hour))
		clients = append(clients, c)
		for range 20 {
			workers.Go(func() {
				for time.Now().Before(over) {
					contend(c)
				}
			})
		}
	}
	workers.Wait()
	t.Logf("held %d times, given up %d times", held.Load(), givenUp.Load())
	assert.Positive(t, held.Load())
	assert.Positive(t, givenUp.Load())

	rdb := s.Client(t)
	eventually(t, func() bool { return get(t, rdb, key) == "" }, "nothing is left in the key")
	for _, c := range clients {
		assert.NoError(t, c.Close())
	}
	assert.Empty(t, get(t, rdb, key))
}
