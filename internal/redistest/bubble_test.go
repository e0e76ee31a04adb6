package redistest_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold/internal/redistest"
)

func inBubble(t *testing.T, f func(t *testing.T, b *redistest.Bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, redistest.NewBubble(t)) })
}

// once is an edit that makes a failure show, which go-redis would else mend by
// repeating the command.
func once(o *redis.Options) { o.MaxRetries = -1 }

func serverTime(t *testing.T, c *redis.Client) time.Time {
	t.Helper()
	at, err := c.Time(t.Context()).Result()
	require.NoError(t, err)
	return at
}

func TestBubble_KeyEndsInTheInstantItsTTLIsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t)
		const ttl = 30 * time.Second
		time.Sleep(1234567 * time.Nanosecond) // no whole millisecond
		require.NoError(t, c.Set(t.Context(), "k", "v", ttl).Err())
		time.Sleep(ttl - time.Nanosecond)
		assert.EqualValues(t, 1, c.Exists(t.Context(), "k").Val())
		assert.True(t, b.Exists("k"))
		time.Sleep(time.Nanosecond)
		assert.False(t, b.Exists("k"))
		assert.Zero(t, c.Exists(t.Context(), "k").Val())
	})
}

func TestBubble_ScriptsSeeExactExpiry(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t)
		script := redis.NewScript(`return {redis.call('PTTL', KEYS[1]), redis.call('TIME')[1]}`)
		require.NoError(t, c.Set(t.Context(), "k", "v", time.Second).Err())
		time.Sleep(400 * time.Millisecond)
		got, err := script.Run(t.Context(), c, []string{"k"}).Slice()
		require.NoError(t, err)
		assert.EqualValues(t, 600, got[0])
		time.Sleep(600 * time.Millisecond)
		got, err = script.Run(t.Context(), c, []string{"k"}).Slice()
		require.NoError(t, err)
		assert.EqualValues(t, -2, got[0])
	})
}

func TestBubble_ShiftedClockRunsAndLeavesTTLsAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t)
		require.NoError(t, c.Set(t.Context(), "k", "v", 100*time.Second).Err())
		for _, d := range []time.Duration{-time.Minute, time.Hour, 0} {
			b.ShiftClock(d)
			for range 3 {
				time.Sleep(10 * time.Second)
				assert.Equal(t, time.Now().Add(d).UnixMicro(), serverTime(t, c).UnixMicro(), "shifted by %v", d)
			}
		}
		assert.Equal(t, 10*time.Second, c.PTTL(t.Context(), "k").Val())
		time.Sleep(10 * time.Second)
		assert.Zero(t, c.Exists(t.Context(), "k").Val())
	})
}

func TestBubble_DeadlinesOfKeysFollowTheShiftedClock(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t)
		b.ShiftClock(-time.Minute)
		require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
		require.NoError(t, c.PExpireAt(t.Context(), "k", time.Now()).Err())
		assert.Equal(t, time.Minute, c.PTTL(t.Context(), "k").Val())
	})
}

// What runs while the clock is set must not take the jump for time that passed.
func TestBubble_ShiftClockUnderLoad(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t)
		require.NoError(t, c.Set(t.Context(), "k", "v", time.Minute).Err())
		stop := make(chan struct{})
		var load sync.WaitGroup
		for range 4 {
			load.Go(func() { // ends at stop; waited for below
				for {
					select {
					case <-stop:
						return
					default:
						b.Exists("k")
						c.Exists(context.Background(), "k")
					}
				}
			})
		}
		for range 5000 {
			b.ShiftClock(time.Hour)
			b.ShiftClock(0)
		}
		close(stop)
		load.Wait()
		assert.Equal(t, time.Minute, c.PTTL(t.Context(), "k").Val())
	})
}

func TestBubble_SetTimeStandsStillUntilShiftClock(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t)
		require.NoError(t, c.Set(t.Context(), "k", "v", 10*time.Second).Err())
		back := time.Now().Add(-time.Minute)
		b.SetTime(back)
		time.Sleep(time.Hour)
		assert.Equal(t, back.UnixMicro(), serverTime(t, c).UnixMicro())
		assert.Equal(t, 10*time.Second, c.PTTL(t.Context(), "k").Val())

		b.ShiftClock(0)
		assert.Equal(t, time.Now().UnixMicro(), serverTime(t, c).UnixMicro())
		assert.Equal(t, 10*time.Second, c.PTTL(t.Context(), "k").Val())
		time.Sleep(10 * time.Second)
		assert.Zero(t, c.Exists(t.Context(), "k").Val())
	})
}

func TestBubble_OnCommandTellsWhatClientsSend(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t)
		require.NoError(t, c.Ping(t.Context()).Err())
		var told []string
		b.OnCommand(func(cmd string, args []string) {
			told = append(told, cmd)
			if cmd == "SET" {
				assert.Equal(t, []string{"k", "v"}, args)
				assert.False(t, b.Exists("k"), "told before it is carried out")
			}
		})
		require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
		require.NoError(t, c.Eval(t.Context(), `return redis.call('GET', KEYS[1])`, []string{"k"}).Err())
		assert.Equal(t, []string{"SET", "EVAL"}, told, "without what the script calls")
	})
}

func TestBubble_PauseFromOnCommandHangsThatCommand(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t, once)
		b.OnCommand(func(cmd string, _ []string) {
			if cmd == "SET" {
				b.Pause(t)
			}
		})
		assert.Error(t, c.Set(t.Context(), "k", "v", 0).Err())
		assert.False(t, b.Exists("k"))
		b.Resume(t)
		synctest.Wait()
		assert.True(t, b.Exists("k"))
	})
}

func TestBubble_SetErrorRefusesAllButTheHandshake(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t, once)
		b.SetError("READONLY You can't write against a read only replica.")
		assert.True(t, redis.HasErrorPrefix(c.Set(t.Context(), "k", "v", 0).Err(), "READONLY"))
		assert.NoError(t, c.Ping(t.Context()).Err())
		b.SetError("")
		assert.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	})
}

func TestBubble_ClosedRefusesAndStaysClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *redistest.Bubble) {
		c := b.Client(t)
		require.NoError(t, c.Ping(t.Context()).Err())
		b.Close()
		assert.ErrorIs(t, c.Ping(t.Context()).Err(), syscall.ECONNREFUSED)
	})
}

// synctest.Test fails if a goroutine is left, whatever the test left behind.
func TestBubble_EndsWithTheTest(t *testing.T) {
	for name, leave := range map[string]func(b *redistest.Bubble, w *redistest.Wire){
		"paused":     func(b *redistest.Bubble, _ *redistest.Wire) { b.Pause(nil) },
		"blackholed": func(_ *redistest.Bubble, w *redistest.Wire) { w.Blackhole() },
		"held": func(_ *redistest.Bubble, w *redistest.Wire) {
			w.Decide(func(string) redistest.Fate { return redistest.HoldRequest })
		},
		"swallowed": func(_ *redistest.Bubble, w *redistest.Wire) {
			w.Decide(func(string) redistest.Fate { return redistest.SwallowReply })
		},
		"down": func(_ *redistest.Bubble, w *redistest.Wire) { w.Down() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *redistest.Bubble) {
				w := redistest.NewWire()
				c := b.Client(t, w.Attach)
				require.NoError(t, c.Ping(t.Context()).Err())
				sub := c.Subscribe(t.Context(), "ch")
				t.Cleanup(func() { sub.Close() })
				_, err := sub.Receive(t.Context())
				require.NoError(t, err)
				leave(b, w)
				var out atomic.Int32
				for range 3 {
					out.Add(1)
					go func() { // ends with the client; the bubble waits for it
						defer out.Add(-1)
						c.Set(context.Background(), "k", "v", 0)
					}()
				}
				time.Sleep(time.Second)
				assert.Positive(t, out.Load(), "nothing is left behind")
			})
		})
	}
}

// waitForPool has a client wait a second for the only connection of its pool, and
// returns how long that took.
func waitForPool(t *testing.T, r redistest.Redis) time.Duration {
	c := r.Client(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout, o.MaxRetries = 1, 50*time.Millisecond, -1 })
	only := c.Conn()
	defer only.Close()
	require.NoError(t, only.Ping(t.Context()).Err())
	start := time.Now()
	for range 20 { // under the race detector a sync.Pool forgets some
		require.ErrorContains(t, c.Ping(t.Context()).Err(), "pool timeout")
	}
	return time.Since(start)
}

// go-redis keeps timers from one client to the next, and a bubble's must not be
// mixed with others.
func TestEach_WaitsForAPoolDoNotMixClocks(t *testing.T) {
	s := redistest.NewServer(t)
	for range 2 {
		for range 2 {
			inBubble(t, func(t *testing.T, b *redistest.Bubble) {
				assert.Equal(t, time.Second, waitForPool(t, b), "exact")
			})
		}
		assert.GreaterOrEqual(t, waitForPool(t, s), time.Second)
	}
}

func TestEach_DefaultsOfGoRedis(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c := r.Client(t, func(o *redis.Options) { o.DB = 3 })
		assert.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
		o := c.Options()
		assert.Equal(t, 3, o.DB, "edits apply")
		assert.Equal(t, 3, o.MaxRetries)
		assert.Equal(t, 5*time.Second, o.ReadTimeout)
		assert.False(t, o.ContextTimeoutEnabled)
		assert.Equal(t, r.Addr(), o.Addr)
		require.NoError(t, c.Close(), "a test may close it itself")
	})
}

// Pause hangs, and what was sent meanwhile is carried out after Resume although
// its sender has given up.
func TestEach_PauseHangsAndResumeCarriesOut(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c := r.Client(t, once, func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond })
		watch := r.Client(t)
		require.NoError(t, c.Ping(t.Context()).Err())
		r.Pause(t)
		r.Pause(t)
		_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Set(t.Context(), "k1", "v", 0)
			p.Set(t.Context(), "k2", "v", 0)
			return nil
		})
		assert.True(t, isTimeout(err), "on a pooled connection: %v", err)
		err = c.Set(t.Context(), "k3", "v", 0).Err()
		assert.True(t, isTimeout(err), "on a new connection: %v", err)
		r.Resume(t)
		r.Resume(t)
		eventually(t, func() bool { return watch.Exists(t.Context(), "k1", "k2").Val() == 2 }, "carried out")
		assert.Zero(t, watch.Exists(t.Context(), "k3").Val(), "hung in the handshake")
		r.Pause(t)
		r.Resume(t)
		assert.NoError(t, c.Ping(t.Context()).Err())
	})
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// eventually polls until ok, with fake time in a bubble.
func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s within 10 s", what)
		}
	}
}
