package leasehold

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nowhere is a client of a Redis that is not there: what is refused before any
// command is refused with it too.
func nowhere(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestOptionsRefuse(t *testing.T) {
	for _, c := range []struct {
		opts []Option
		want string
	}{
		{[]Option{WithTTL(0)}, "WithTTL(0s): must be from 10ms to 30 days"},
		{[]Option{WithTTL(-time.Second)}, "WithTTL(-1s): must be from 10ms to 30 days"},
		{[]Option{WithTTL(9 * time.Millisecond)}, "WithTTL(9ms): must be from 10ms to 30 days"},
		{[]Option{WithTTL(290 * 365 * 24 * time.Hour)}, "must be from 10ms to 30 days"},
		{[]Option{WithTTL(maxTTL + time.Millisecond)}, "must be from 10ms to 30 days"},
		{[]Option{WithTTL(10*time.Millisecond + time.Microsecond)}, "WithTTL(10.001ms): must be whole milliseconds"},
		{[]Option{WithRenewEvery(0)}, "WithRenewEvery(0s): must be more than 0"},
		{[]Option{WithRenewEvery(-1)}, "WithRenewEvery(-1ns): must be more than 0"},
		{[]Option{WithRenewEvery(7 * time.Second)}, "WithRenewEvery(7s): must be at most 2/3 of the TTL, which is 10s"},
		{[]Option{WithRenewEvery(time.Second), WithoutRenewal()}, "WithRenewEvery and WithoutRenewal contradict each other"},
		{[]Option{WithoutRenewal(), WithRenewEvery(time.Second)}, "WithRenewEvery and WithoutRenewal contradict each other"},
		{[]Option{WithWait(0)}, "WithWait(0s): must be more than 0"},
		{[]Option{WithWait(-time.Second)}, "WithWait(-1s): must be more than 0"},
		{[]Option{WithMetadata(strings.Repeat("x", 1025))}, "WithMetadata: must be at most 1024 bytes, not 1025"},
		{[]Option{WithReleaseTimeout(0)}, "WithReleaseTimeout(0s): must be more than 0"},
		{[]Option{nil}, "an option is nil"},
	} {
		onClient := New(nowhere(t), c.opts...).NewLock("orders:42")
		onLock := New(nowhere(t)).NewLock("orders:42", c.opts...)
		for _, l := range []*Lock{onClient, onLock} {
			_, err := l.TryAcquire(t.Context())
			require.ErrorIs(t, err, ErrInvalid)
			assert.Contains(t, err.Error(), c.want)
			assert.Contains(t, err.Error(), `"orders:42"`)
			_, again := l.Acquire(t.Context())
			assert.EqualError(t, again, err.Error())
		}
	}
}

func TestOptionsOfNewAlone(t *testing.T) {
	l := New(nowhere(t)).NewLock("k", WithPrefix("p:"), WithLogger(slog.Default()))
	_, err := l.TryAcquire(t.Context())
	require.ErrorIs(t, err, ErrInvalid)
	assert.Contains(t, err.Error(), "WithPrefix: is an option of New, not of NewLock")
	assert.Contains(t, err.Error(), "WithLogger: is an option of New, not of NewLock")

	_, err = New(nowhere(t), WithLogger(nil)).NewLock("k").TryAcquire(t.Context())
	require.ErrorIs(t, err, ErrInvalid)
	assert.Contains(t, err.Error(), "WithLogger: the logger is nil")
}

func TestOptionsThatWorkAtTheirLimits(t *testing.T) {
	for _, opts := range [][]Option{
		nil,
		{WithTTL(minTTL)},
		{WithTTL(maxTTL)},
		{WithRenewEvery(1)},
		{WithTTL(20 * time.Second), WithRenewEvery(20 * time.Second * 2 / 3)},
		{WithTTL(3 * time.Second), WithRenewEvery(2 * time.Second)},
		{WithoutRenewal()},
		{WithWait(1)},
		{WithMetadata(strings.Repeat("\xff\n\x00 ", 256))},
		{WithReleaseTimeout(1)},
	} {
		assert.Empty(t, New(nowhere(t), opts...).NewLock("k").faults)
	}
}

func TestLockOptionsReplaceTheClients(t *testing.T) {
	c := New(nowhere(t), WithTTL(4*time.Second), WithRenewEvery(time.Second), WithMetadata("client"), WithPrefix("p:"))

	inherits := c.NewLock("k").settings
	assert.Equal(t, 4*time.Second, inherits.ttl)
	assert.Equal(t, time.Second, inherits.renewalInterval())

	own := c.NewLock("k", WithTTL(8*time.Second), WithMetadata("lock")).settings
	assert.Equal(t, 8*time.Second, own.ttl)
	assert.Equal(t, time.Second, own.renewalInterval())
	assert.Equal(t, "lock", own.metadata)
	assert.Equal(t, "p:", own.prefix)

	never := c.NewLock("k", WithoutRenewal())
	assert.Empty(t, never.faults, "an option of the same kind replaces the Client's")
	assert.Zero(t, never.settings.renewalInterval())

	again := New(nowhere(t), WithoutRenewal()).NewLock("k", WithRenewEvery(time.Second))
	assert.Empty(t, again.faults)
	assert.Equal(t, time.Second, again.settings.renewalInterval())
}

func TestDefaultRenewalIsHalfTheTTLInForce(t *testing.T) {
	c := New(nowhere(t), WithTTL(4*time.Second))
	assert.Equal(t, 2*time.Second, c.NewLock("k").settings.renewalInterval())
	assert.Equal(t, 5*time.Second, c.NewLock("k", WithTTL(10*time.Second)).settings.renewalInterval())
}

func TestShortTTLIsWarnedOfOnce(t *testing.T) {
	var log strings.Builder
	c := New(nowhere(t), WithTTL(50*time.Millisecond), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	c.NewLock("a")
	c.NewLock("b")
	assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
	assert.Contains(t, log.String(), "below 100 ms")
}

func TestNewPanicsOnNil(t *testing.T) {
	assert.Panics(t, func() { New(nil) })
	assert.Panics(t, func() { New((*redis.Client)(nil)) })
	assert.Panics(t, func() { New((*redis.ClusterClient)(nil)) })
}
