// Package redistest gives tests a Redis whose clock, life and network they command.
//
// A [Bubble] is miniredis inside a testing/synctest bubble: minutes of leases pass
// in milliseconds and every instant is exact. A [Server] is a real redis-server:
// what miniredis only imitates is true there. [Each] runs one test on both. A
// [Wire] goes between a client and either of them and loses, holds back or cuts
// what passes.
package redistest

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
)

// Redis is a server under test, whichever it is.
type Redis interface {
	// Client returns a client with go-redis's default options, changed by edit in
	// the order given. It is closed at the test's end.
	Client(t testing.TB, edit ...func(*redis.Options)) *redis.Client

	// Pause hangs the server: connections stay open and new ones are taken, nothing
	// is answered. What is sent meanwhile is carried out after Resume, even where
	// its sender has closed the connection. Pausing twice is pausing once.
	Pause(t testing.TB)

	// Resume ends a Pause; without one it does nothing.
	Resume(t testing.TB)

	// Addr is what clients dial. A Bubble's leads nowhere without its Client.
	Addr() string
}

// Each runs f as two subtests: "bubble" inside synctest.Test, and then
// "redis-server" against a real server of its own, for which t becomes a parallel
// test. So what is real begins when all that is serial is over, every bubble among
// it: those must not share a process's pools with what runs outside. t can be given
// to Each once.
func Each(t *testing.T, f func(t *testing.T, r Redis)) {
	t.Helper()
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, NewBubble(t)) })
	})
	t.Parallel()
	t.Run("redis-server", func(t *testing.T) { f(t, NewServer(t)) })
}

func newClient(t testing.TB, o *redis.Options, edit []func(*redis.Options)) *redis.Client {
	t.Helper()
	for _, e := range edit {
		e(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Logf("closing the client: %v", err)
		}
	})
	return c
}
