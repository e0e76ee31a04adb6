package redistest_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold/internal/redistest"
)

// impatient is an edit that bounds the wait for what does not come.
func impatient(o *redis.Options) { o.ReadTimeout = 200 * time.Millisecond }

// wired runs f on both servers with a client behind a Wire, which does not repeat
// what failed, and a client that goes past the Wire.
func wired(t *testing.T, f func(t *testing.T, w *redistest.Wire, c, past *redis.Client)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		w := redistest.NewWire()
		past := r.Client(t)
		f(t, w, r.Client(t, w.Attach, once, impatient), past)
		w.Close()
	})
}

// only has one fate for requests that contain text, and Pass for others.
func only(text string, fate redistest.Fate) func(string) redistest.Fate {
	return func(request string) redistest.Fate {
		if strings.Contains(request, text) {
			return fate
		}
		return redistest.Pass
	}
}

func TestWire_PassesAndAsksOnlyAfterTheHandshake(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, _ *redis.Client) {
		var asked []string
		w.Decide(func(request string) redistest.Fate {
			asked = append(asked, request)
			return redistest.Pass
		})
		require.NoError(t, c.Ping(t.Context()).Err())
		require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
		_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Get(t.Context(), "k")
			p.Get(t.Context(), "l")
			return nil
		})
		require.ErrorIs(t, err, redis.Nil)
		assert.Equal(t, []string{
			"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$1\r\nv\r\n",
			"*2\r\n$3\r\nget\r\n$1\r\nk\r\n*2\r\n$3\r\nget\r\n$1\r\nl\r\n",
		}, asked)
	})
}

func TestWire_CarriesEveryKindOfReply(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, _ *redis.Client) {
		large := strings.Repeat("x", 200_000)
		asked := 0
		w.Decide(func(string) redistest.Fate { asked++; return redistest.Pass })
		require.NoError(t, c.Set(t.Context(), "large", large, 0).Err())
		assert.Equal(t, 1, asked, "one request, of however many writes")
		assert.Equal(t, large, c.Get(t.Context(), "large").Val())
		assert.ErrorIs(t, c.Get(t.Context(), "none").Err(), redis.Nil)
		require.NoError(t, c.HSet(t.Context(), "h", "a", "1", "b", "2").Err())
		assert.Equal(t, map[string]string{"a": "1", "b": "2"}, c.HGetAll(t.Context(), "h").Val())
		require.NoError(t, c.ZAdd(t.Context(), "z", redis.Z{Score: 1.5, Member: "m"}).Err())
		assert.Equal(t, 1.5, c.ZScore(t.Context(), "z", "m").Val())
		got, err := c.Eval(t.Context(), `return {1, {'two', {}}, false}`, nil).Slice()
		require.NoError(t, err)
		assert.Equal(t, []any{int64(1), []any{"two", []any{}}, nil}, got)
		assert.ErrorContains(t, c.Incr(t.Context(), "large").Err(), "not an integer")
	})
}

func TestWire_CarriesMessages(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, past *redis.Client) {
		sub := c.Subscribe(t.Context(), "ch")
		defer sub.Close()
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
		require.NoError(t, past.Publish(t.Context(), "ch", "hello").Err())
		got, err := sub.ReceiveMessage(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "hello", got.Payload)
	})
}

func TestWire_LoseReply(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, past *redis.Client) {
		w.Decide(only("lost", redistest.LoseReply))
		for n := range 10 {
			key := fmt.Sprint("lost", n)
			assert.ErrorIs(t, c.Set(t.Context(), key, "v", 0).Err(), io.EOF)
			assert.EqualValues(t, 1, past.Exists(t.Context(), key).Val(), "carried out before the EOF")
		}
		assert.NoError(t, c.Set(t.Context(), "k", "v", 0).Err(), "a new connection passes")
	})
}

// The server takes its time for the last command of the pipeline, after it has
// answered the first.
func TestWire_LoseReplyWaitsForAllOfAPipeline(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		w := redistest.NewWire()
		c := b.Client(t, w.Attach, once)
		b.OnCommand(func(cmd string, _ []string) {
			if cmd == "SET" {
				time.Sleep(time.Second)
			}
		})
		w.Decide(only("last", redistest.LoseReply))
		start := time.Now()
		_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.HGetAll(t.Context(), "none")
			p.Set(t.Context(), "last", "v", 0)
			return nil
		})
		assert.ErrorIs(t, err, io.EOF)
		assert.Equal(t, time.Second, time.Since(start))
		assert.True(t, b.Exists("last"), "carried out before the EOF")
	})
}

// By default go-redis repeats a command whose reply was lost.
func TestWire_LoseReplyMeetsGoRedisRetries(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		w := redistest.NewWire()
		c := r.Client(t, w.Attach)
		var asked atomic.Int32
		w.Decide(func(string) redistest.Fate {
			if asked.Add(1) == 1 {
				return redistest.LoseReply
			}
			return redistest.Pass
		})
		assert.EqualValues(t, 2, c.Incr(t.Context(), "n").Val())
		w.Close()
	})
}

func TestWire_SwallowReply(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, past *redis.Client) {
		w.Decide(only("lost", redistest.SwallowReply))
		start := time.Now()
		err := c.Set(t.Context(), "lost", "v", 0).Err()
		assert.True(t, isTimeout(err), "%v", err)
		assert.GreaterOrEqual(t, time.Since(start), 200*time.Millisecond)
		assert.EqualValues(t, 1, past.Exists(t.Context(), "lost").Val())
		assert.NoError(t, c.Set(t.Context(), "k", "v", 0).Err(), "a new connection passes")
	})
}

// Silent for ever means silent about the server's end too.
func TestWire_SwallowReplyStaysSilentWhenTheServerIsGone(t *testing.T) {
	s := redistest.NewServer(t)
	w := redistest.NewWire()
	c := s.Client(t, w.Attach, once, func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond })
	past := s.Client(t)
	w.Decide(only("lost", redistest.SwallowReply))
	got := make(chan error, 1)
	// Ends with its command, awaited below.
	go func() { got <- c.Set(context.Background(), "lost", "v", 0).Err() }()
	eventually(t, func() bool { return past.Exists(t.Context(), "lost").Val() == 1 }, "carried out")
	s.Kill(t)
	err := <-got
	assert.True(t, isTimeout(err), "%v", err)
	w.Close()
}

func TestWire_LoseRequest(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, past *redis.Client) {
		w.Decide(only("lost", redistest.LoseRequest))
		assert.ErrorIs(t, c.Set(t.Context(), "lost", "v", 0).Err(), io.EOF)
		assert.NoError(t, c.Set(t.Context(), "k", "v", 0).Err(), "a new connection passes")
		assert.Zero(t, past.Exists(t.Context(), "lost").Val())
	})
}

func TestWire_HoldRequestUntilDeliver(t *testing.T) {
	for name, meanwhile := range map[string]func(w *redistest.Wire){
		"nothing else happens": func(*redistest.Wire) {},
		"connections are cut":  func(w *redistest.Wire) { w.Cut() },
		"the network is down":  func(w *redistest.Wire) { w.Down() },
	} {
		t.Run(name, func(t *testing.T) {
			wired(t, func(t *testing.T, w *redistest.Wire, c, past *redis.Client) {
				w.Decide(only("held", redistest.HoldRequest))
				for n := range 3 { // each given up, and its connection closed, before the next
					err := c.RPush(t.Context(), "held", n).Err()
					assert.True(t, isTimeout(err), "%v", err)
				}
				meanwhile(w)
				assert.Zero(t, past.Exists(t.Context(), "held").Val())
				w.Deliver()
				assert.Equal(t, []string{"0", "1", "2"}, past.LRange(t.Context(), "held", 0, -1).Val(), "in order")
				w.Deliver()
				assert.EqualValues(t, 3, past.LLen(t.Context(), "held").Val(), "once")
			})
		})
	}
}

func TestWire_HeldRequestOfAnOpenConnectionIsNotAnswered(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		w := redistest.NewWire()
		c := r.Client(t, w.Attach, once, func(o *redis.Options) { o.ReadTimeout = 2 * time.Second })
		past := r.Client(t)
		held := make(chan struct{})
		w.Decide(func(string) redistest.Fate { close(held); return redistest.HoldRequest })
		got := make(chan error, 1)
		// Ends with its command, awaited below.
		go func() { got <- c.Set(context.Background(), "k", "v", 0).Err() }()
		<-held
		eventually(t, func() bool { w.Deliver(); return past.Exists(t.Context(), "k").Val() == 1 }, "delivered")
		err := <-got
		assert.True(t, isTimeout(err), "%v", err)
		w.Close()
	})
}

func TestWire_Cut(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, past *redis.Client) {
		require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
		w.Cut()
		err := c.Set(t.Context(), "k", "v", 0).Err()
		assert.ErrorIs(t, err, syscall.EPIPE)
		assert.NoError(t, c.Set(t.Context(), "k", "v", 0).Err(), "a new connection passes")
		eventually(t, func() bool { return subscribers(t, w, c, past) == 0 }, "known to the server")
	})
}

// subscribers cuts a subscribed connection and returns how many the server counts.
func subscribers(t *testing.T, w *redistest.Wire, c, past *redis.Client) int64 {
	sub := c.Subscribe(t.Context(), "ch")
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	w.Cut()
	eventually(t, func() bool { return numSub(t, past) == 0 }, "closed")
	return numSub(t, past)
}

func numSub(t *testing.T, c *redis.Client) int64 {
	t.Helper()
	n, err := c.PubSubNumSub(t.Context(), "ch").Result()
	require.NoError(t, err)
	return n["ch"]
}

func TestWire_DownRefusesUntilUp(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, _ *redis.Client) {
		require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
		w.Down()
		assert.Error(t, c.Set(t.Context(), "k", "v", 0).Err(), "cut")
		assert.ErrorIs(t, c.Set(t.Context(), "k", "v", 0).Err(), syscall.ECONNREFUSED)
		w.Up()
		assert.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	})
}

func TestWire_BlackholeLeavesTheServerInTheDark(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, past *redis.Client) {
		require.NoError(t, c.Ping(t.Context()).Err())
		sub := c.Subscribe(t.Context(), "ch")
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)

		w.Blackhole()
		err = c.Set(t.Context(), "lost", "v", 0).Err()
		assert.True(t, isTimeout(err), "on a connection of before: %v", err)
		assert.NoError(t, c.Set(t.Context(), "k", "v", 0).Err(), "on a new one")
		assert.Zero(t, past.Exists(t.Context(), "lost").Val())

		for range 3 { // a server must not get stuck on what nobody reads
			assert.EqualValues(t, 1, past.Publish(t.Context(), "ch", "hello").Val())
		}
		_, err = sub.ReceiveTimeout(t.Context(), 100*time.Millisecond)
		assert.True(t, isTimeout(err), "%v", err)
		require.NoError(t, sub.Close())
		time.Sleep(50 * time.Millisecond) // in which a closing would have got through
		assert.EqualValues(t, 1, numSub(t, past))

		w.Heal()
		eventually(t, func() bool { return numSub(t, past) == 0 }, "closed")
		assert.NoError(t, c.Set(t.Context(), "k", "v", 0).Err(), "Heal leaves other connections alone")
	})
}

func TestWire_DecideMayDelay(t *testing.T) {
	wired(t, func(t *testing.T, w *redistest.Wire, c, _ *redis.Client) {
		w.Decide(func(string) redistest.Fate {
			time.Sleep(50 * time.Millisecond)
			return redistest.Pass
		})
		start := time.Now()
		require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
		assert.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)
	})
}
