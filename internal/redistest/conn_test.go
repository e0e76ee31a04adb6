package redistest_test

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold/internal/redistest"
)

// dialer is what go-redis dials with.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// assertDiesLikeTCP checks each of a connection's ends: by deadline, by its peer,
// by itself.
func assertDiesLikeTCP(t *testing.T, dial dialer, cut func()) {
	t.Helper()
	buf := make([]byte, 16)

	mine, err := dial(t.Context(), "tcp", "")
	require.NoError(t, err)
	start := time.Now()
	require.NoError(t, mine.SetReadDeadline(start.Add(100*time.Millisecond)))
	_, err = mine.Read(buf)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.GreaterOrEqual(t, time.Since(start), 100*time.Millisecond)
	require.NoError(t, mine.SetDeadline(time.Time{}))
	ended := make(chan error, 1)
	// Ends at Close, awaited below.
	go func() { _, err := mine.Read(make([]byte, 16)); ended <- err }()
	require.NoError(t, mine.Close())
	assert.ErrorIs(t, <-ended, net.ErrClosed)
	_, err = mine.Write(buf)
	assert.ErrorIs(t, err, net.ErrClosed)
	assert.ErrorIs(t, mine.SetDeadline(time.Now()), net.ErrClosed)

	theirs, err := dial(t.Context(), "tcp", "")
	require.NoError(t, err)
	cut()
	assert.NoError(t, theirs.SetReadDeadline(time.Now().Add(time.Second)))
	_, err = theirs.Read(buf)
	assert.Equal(t, io.EOF, err)
	assert.NoError(t, theirs.SetWriteDeadline(time.Now().Add(time.Second)))
	_, err = theirs.Write(buf)
	assert.ErrorIs(t, err, syscall.EPIPE)
	require.NoError(t, theirs.Close())
}

func TestWire_FailsAsTCPDoes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		w := redistest.NewWire()
		var o *redis.Options
		r.Client(t, w.Attach, func(edited *redis.Options) { o = edited })
		assertDiesLikeTCP(t, func(ctx context.Context, network, _ string) (net.Conn, error) {
			return o.Dialer(ctx, network, r.Addr())
		}, w.Cut)
		w.Close()
	})
}

// A read on a silent connection knows its deadline and its Close.
func TestWire_SilentConnectionKeepsDeadlines(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		w := redistest.NewWire()
		var o *redis.Options
		r.Client(t, w.Attach, func(edited *redis.Options) { o = edited })
		c, err := o.Dialer(t.Context(), "tcp", r.Addr())
		require.NoError(t, err)
		w.Blackhole()
		for range 10 { // more than what a pipe without a reader would take
			_, err = c.Write([]byte("*1\r\n$4\r\nPING\r\n"))
			require.NoError(t, err)
		}
		start := time.Now()
		require.NoError(t, c.SetReadDeadline(start.Add(100*time.Millisecond)))
		_, err = c.Read(make([]byte, 16))
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.GreaterOrEqual(t, time.Since(start), 100*time.Millisecond)
		require.NoError(t, c.Close())
		_, err = c.Read(make([]byte, 16))
		assert.ErrorIs(t, err, net.ErrClosed)
		w.Close()
	})
}

func TestBubble_FailsAsTCPDoes(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		var dial dialer
		b.Client(t, func(o *redis.Options) { dial = o.Dialer })
		assertDiesLikeTCP(t, dial, b.Close)
	})
}
