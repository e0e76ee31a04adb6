package leasehold_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

// fences takes and releases the key n times and returns the fences in order.
func fences(t testing.TB, c *leasehold.Client, n int) []int64 {
	t.Helper()
	var all []int64
	for range n {
		l := c.NewLock(key)
		acquire(t, l)
		all = append(all, l.Fence())
		require.NoError(t, l.Release())
	}
	return all
}

func rises(t testing.TB, fences []int64) {
	t.Helper()
	for n := 1; n < len(fences); n++ {
		assert.Greater(t, fences[n], fences[n-1], "fence %d of %v", n, fences)
	}
}

func TestG8_FenceRises(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c := newClient(t, r.Client(t))
		got := fences(t, c, 50)

		// Over the expiry of a holder that died with its key, and of the record.
		wire := redistest.NewWire()
		dies := newClient(t, r.Client(t, wire.Attach), leasehold.WithTTL(200*time.Millisecond)).NewLock(key)
		lease := acquire(t, dies)
		got = append(got, dies.Fence())
		wire.Down()
		ends(t, lease)
		got = append(got, fences(t, c, 2)...)

		// Over FLUSHALL, which takes the record. The clock then has to be past the last
		// fence, which it always is outside a bubble, where an acquire takes time.
		time.Sleep(time.Millisecond)
		require.NoError(t, r.Client(t).FlushAll(context.Background()).Err())
		got = append(got, fences(t, c, 2)...)
		rises(t, got)
	})
}

func TestG8_FenceRisesOverTheRecordsExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		c := newClient(t, b.Client(t))
		got := fences(t, c, 2)
		require.True(t, b.Exists(record))
		time.Sleep(11 * time.Second)
		require.False(t, b.Exists(record), "an idle key leaves nothing behind")
		rises(t, append(got, fences(t, c, 2)...))
	})
}

func TestG8_FenceRisesOverAnEmptyRestart(t *testing.T) {
	s := redistest.NewServer(t)
	c := newClient(t, s.Client(t))
	got := fences(t, c, 3)
	l := c.NewLock(key)
	acquire(t, l)
	got = append(got, l.Fence())
	s.Kill(t)
	s.Restart(t)
	got = append(got, fences(t, c, 3)...)
	rises(t, got)
	assert.ErrorIs(t, l.Release(), leasehold.ErrLost)
}

// With the record alive the order is strict whatever the server's clock does.
func TestG8_FenceRisesOverAClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		rdb := b.Client(t)
		c := newClient(t, rdb)
		got := fences(t, c, 3)
		b.ShiftClock(-time.Minute)
		got = append(got, fences(t, c, 3)...)
		// The record outlives the minute that the clock needs to catch up.
		time.Sleep(30 * time.Second)
		got = append(got, fences(t, c, 3)...)
		time.Sleep(50 * time.Second)
		require.Empty(t, get(t, rdb, record))
		rises(t, append(got, fences(t, c, 3)...))
	})
}

// An acquire whose reply was lost has one fence, however often it was sent.
func TestG8_RepeatedAcquireKeepsItsFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, wire, rdb := wired(t, redistest.NewBubble(t))
		next(wire, redistest.LoseReply, redistest.LoseReply)
		first := time.Now().UnixMicro() // what the server's clock gives the first copy
		l := c.NewLock(key)
		acquire(t, l)
		assert.Equal(t, first, l.Fence())
		assert.Equal(t, fmt.Sprintf("%d %d %s", first, first, l.Token()), get(t, rdb, record))
		require.NoError(t, l.Release())
		assert.Greater(t, fences(t, c, 1)[0], first)
	})
}

// Given-up values stand in the record, at most 16 of them and for 60 s, and take
// nothing from its numbers.
func TestG5_RecordForgetsDeadValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		c, wire, _ := wired(t, b)
		first := fences(t, c, 1)
		giveUp := func() {
			ctx, cancel := context.WithCancel(t.Context())
			var once sync.Once
			wire.Decide(func(string) redistest.Fate {
				fate := redistest.Pass
				once.Do(func() { fate = redistest.LoseReply; cancel() })
				return fate
			})
			_, err := c.NewLock(key).Acquire(ctx)
			require.ErrorIs(t, err, context.Canceled)
			time.Sleep(2 * time.Second)
			require.False(t, b.Exists(key))
		}
		for range 20 {
			giveUp()
		}
		record, err := b.Get(record)
		require.NoError(t, err)
		assert.Equal(t, 3+2*16, len(fields(record)), record)
		rises(t, append(first, fences(t, c, 2)...))

		time.Sleep(59 * time.Second)
		fences(t, c, 1)
		time.Sleep(2 * time.Second)
		assert.True(t, b.Exists("{orders:42}:leasehold:record:"))
		fences(t, c, 1)
		got, err := b.Get("{orders:42}:leasehold:record:")
		require.NoError(t, err)
		assert.Len(t, fields(got), 3, "dead values are forgotten: %s", got)
	})
}
