package leasehold_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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

// queue is the auxiliary key with those who wait for key.
const queue = "{orders:42}:leasehold:queue:"

// A contest is several Clients that want one key, in a bubble: a holder, and those
// who wait for it.
type contest struct {
	*testing.T
	b      *redistest.Bubble
	rdb    *redis.Client
	holder *leasehold.Lock
}

// inContest runs a test in a bubble while the key is held.
func inContest(t *testing.T, test func(c *contest)) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		c := &contest{T: t, b: b, rdb: b.Client(t)}
		c.holder = newClient(t, b.Client(t), leasehold.WithMetadata("the holder")).NewLock(key)
		acquire(t, c.holder)
		test(c)
	})
}

// A contender is a Client of its own that waits for the key.
type contender struct {
	lock   *leasehold.Lock
	client *leasehold.Client
	cancel context.CancelFunc
	done   chan error // what Acquire answered
	lease  context.Context
	at     time.Time // when
}

// waits has a Client wait, and returns when it is queued.
func (c *contest) waits(client *leasehold.Client, opts ...leasehold.Option) *contender {
	c.Helper()
	ctx, cancel := context.WithCancel(c.Context())
	w := &contender{lock: client.NewLock(key, opts...), client: client, cancel: cancel, done: make(chan error, 1)}
	// Owned by the test, which receives; ends with the Acquire.
	go func() {
		var err error
		w.lease, err = w.lock.Acquire(ctx)
		w.at = time.Now()
		w.done <- err
	}()
	time.Sleep(200 * time.Millisecond)
	synctest.Wait()
	require.Empty(c, w.done)
	return w
}

// gets waits until a contender holds the key, which must be soon.
func (c *contest) gets(w *contender, soon time.Duration) {
	c.Helper()
	began := time.Now()
	require.NoError(c, <-w.done)
	assert.LessOrEqual(c, w.at.Sub(began), soon)
	assert.NoError(c, w.lease.Err())
	assert.True(c, strings.HasPrefix(get(c, c.rdb, key), w.lock.Token()))
}

// members are the queue's, and values what they wait with, the first first.
func (c *contest) members() (members, values []string) {
	members = c.rdb.ZRange(context.Background(), queue, 0, -1).Val()
	for _, member := range members {
		length, rest, _ := strings.Cut(member, ":")
		n, err := strconv.Atoi(length)
		require.NoError(c, err)
		values = append(values, rest[n:])
	}
	return members, values
}

// handOver does what the holder's release does, but for the wake-up. It returns how
// to send that.
func (c *contest) handOver() (wake func()) {
	members, values := c.members()
	_, rest, _ := strings.Cut(members[0], ":")
	channel, _ := strings.CutSuffix(rest, values[0])
	require.NoError(c, c.rdb.ZRem(c.Context(), queue, members[0]).Err())
	require.NoError(c, c.rdb.Set(c.Context(), key, values[0], 1500*time.Millisecond).Err())
	return func() {
		n := c.rdb.Publish(c.Context(), channel, fmt.Sprintf("%d:%s%s", len(values[0]), values[0], key)).Val()
		assert.EqualValues(c, 1, n, "an inbox hears")
		synctest.Wait()
	}
}

// client is a Client of its own, and a wire in front of it.
func (c *contest) client(opts ...leasehold.Option) (*leasehold.Client, *redistest.Wire) {
	wire := redistest.NewWire()
	return newClient(c, c.b.Client(c, wire.Attach), opts...), wire
}

func (c *contest) contender() *contender {
	client, _ := c.client()
	return c.waits(client)
}

func TestG6_FirstComeFirstServed(t *testing.T) {
	inContest(t, func(c *contest) {
		var contenders []*contender
		for range 5 {
			contenders = append(contenders, c.contender())
		}
		held := c.holder
		for _, w := range contenders {
			fence := held.Fence()
			require.NoError(c, held.Release())
			c.gets(w, 0)
			assert.Greater(c, w.lock.Fence(), fence)
			held = w.lock
		}
		require.NoError(c, held.Release())
		assert.Empty(c, c.rdb.Keys(c.Context(), "*queue*").Val())
		assert.Empty(c, get(c, c.rdb, key))
	})
}

// A head gives up while the key is handed to it: before, and after. Either way the
// key is the next one's at once, and not when the grant has run out.
func TestG6_GivesUpWhileTheKeyIsHandedToIt(t *testing.T) {
	for _, order := range []string{"leave comes first", "the hand-over comes first", "Close"} {
		t.Run(order, func(t *testing.T) {
			inContest(t, func(c *contest) {
				first, second := c.contender(), c.contender()
				wake := func() {}
				switch order {
				case "leave comes first":
					first.cancel()
					synctest.Wait()
					_, values := c.members()
					assert.Len(c, values, 1, "who gives up leaves at once")
					require.NoError(c, c.holder.Release())
				case "the hand-over comes first":
					wake = c.handOver()
					first.cancel()
				case "Close":
					c.handOver()
					require.NoError(c, first.client.Close())
				}
				c.gets(second, 0)
				assert.Error(c, <-first.done)
				wake()
				time.Sleep(2 * time.Second)
				assert.NoError(c, second.lease.Err(), "a late wake-up changes nothing")
				require.NoError(c, second.lock.Release())
				assert.Empty(c, get(c, c.rdb, key))
			})
		})
	}
}

// The wake-up is lost, or the connection on which it was to come: the polls find the
// grant, with the next one or as soon as the inbox is back.
func TestG6_LostWakeUpCostsTimeOnly(t *testing.T) {
	for lost, soon := range map[string]time.Duration{"message": time.Second, "connection": 100 * time.Millisecond} {
		t.Run(lost, func(t *testing.T) {
			inContest(t, func(c *contest) {
				client, wire := c.client()
				w := c.waits(client)
				wake := c.handOver()
				if lost == "connection" {
					wire.Cut()
				}
				c.gets(w, soon)
				wake() // late: for a lease that there is already
				assert.NoError(c, w.lease.Err())
				assert.NoError(c, w.lock.Release())
			})
		})
	}
}

// A subscription that was confirmed and then hears nothing, without an error. The
// polls go on over other connections; the ping finds out.
func TestInbox_SilentConnectionIsGivenUp(t *testing.T) {
	inContest(t, func(c *contest) {
		client, wire := c.client()
		w := c.waits(client)
		wire.Blackhole()
		time.Sleep(time.Second)
		wire.Heal()
		time.Sleep(30 * time.Second)
		require.NoError(c, c.holder.Release())
		c.gets(w, 0)
		require.NoError(c, w.lock.Release())
	})
}

// The key became free without a hand-over: who comes now hands it to the one who came
// first, though that one has not found out.
func TestG6_NobodyBargesIn(t *testing.T) {
	for name, ask := range map[string]func(*leasehold.Lock, context.Context) (context.Context, error){
		"TryAcquire": (*leasehold.Lock).TryAcquire, "Acquire": (*leasehold.Lock).Acquire,
	} {
		t.Run(name, func(t *testing.T) {
			inContest(t, func(c *contest) {
				w := c.contender()
				require.NoError(c, c.rdb.Del(c.Context(), key).Err())
				client, _ := c.client()
				_, err := ask(client.NewLock(key, leasehold.WithWait(100*time.Millisecond)), c.Context())
				assert.ErrorIs(c, err, leasehold.ErrBusy)
				c.gets(w, 0)
				require.NoError(c, w.lock.Release())
			})
		})
	}
}

// Clean-up that hangs for one value does not keep back another's leave.
func TestG6_LeavesAtOnceWhileCleanUpHangs(t *testing.T) {
	inContest(t, func(c *contest) {
		client, wire := c.client()
		warm(c, client)
		wire.Decide(func(request string) redistest.Fate {
			if strings.Contains(request, "stuck") {
				return redistest.SwallowReply
			}
			return redistest.Pass
		})
		ctx, cancel := context.WithTimeout(c.Context(), 100*time.Millisecond)
		defer cancel()
		require.Error(c, second(client.NewLock("stuck").TryAcquire(ctx)))
		first, next := c.waits(client), c.contender()
		first.cancel()
		<-first.done
		synctest.Wait()
		_, values := c.members()
		assert.Len(c, values, 1)
		require.NoError(c, c.holder.Release())
		c.gets(next, 0)
		require.NoError(c, next.lock.Release())
	})
}

// Grant and poll cross, and a wake-up for an old value comes while another asks.
func TestG7_OldWakeUpEndsNoLease(t *testing.T) {
	inContest(t, func(c *contest) {
		w := c.contender()
		wake := c.handOver()
		wake()
		c.gets(w, 0)
		wake()
		time.Sleep(time.Second)
		require.NoError(c, w.lease.Err())
		var releasing atomic.Bool
		c.b.OnCommand(func(cmd string, _ []string) {
			if strings.HasPrefix(cmd, "EVAL") && releasing.CompareAndSwap(true, false) {
				wake() // while the release is under way
			}
		})
		releasing.Store(true)
		require.NoError(c, w.lock.Release(), "it was ours until now")

		client, _ := c.client()
		c.holder = client.NewLock(key)
		acquire(c, c.holder)
		again := c.waits(w.client)
		wake()
		time.Sleep(time.Second)
		require.Empty(c, again.done)
		require.NoError(c, c.holder.Release())
		c.gets(again, 0)
		require.NoError(c, again.lock.Release())
	})
}

// When its first waiter leaves, the next one in line inherits the place, whether or
// not its value would be the same.
func TestG6_NextInLineInheritsThePlace(t *testing.T) {
	for name, opts := range map[string][]leasehold.Option{
		"same": nil, "other metadata": {leasehold.WithMetadata("x")}, "other TTL": {leasehold.WithTTL(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			inContest(t, func(c *contest) {
				client, _ := c.client()
				first := c.waits(client)
				behind := c.contender()
				heir := c.waits(client, opts...)
				middle := c.waits(client)
				last := c.waits(client)
				middle.cancel()
				assert.ErrorIs(c, <-middle.done, leasehold.ErrBusy)
				first.cancel()
				assert.ErrorIs(c, <-first.done, leasehold.ErrBusy)
				synctest.Wait()
				_, values := c.members()
				assert.Len(c, values, 2)

				require.NoError(c, c.holder.Release())
				c.gets(heir, 0)
				require.NoError(c, heir.lock.Release())
				c.gets(behind, 0)
				require.NoError(c, behind.lock.Release())
				c.gets(last, 0)
				require.NoError(c, last.lock.Release())
				assert.Empty(c, c.rdb.Keys(c.Context(), "*queue*").Val())
			})
		})
	}
}

// A head leaves over a poll that took the key: the next one finds it with the same
// value, at once.
func TestG7_HeirFindsTheGrantOfAnAbandonedPoll(t *testing.T) {
	inContest(t, func(c *contest) {
		client, wire := c.client()
		first := c.waits(client)
		heir := c.waits(client)
		wire.Decide(func(request string) redistest.Fate {
			if strings.Contains(request, "eval") {
				wire.Decide(nil)
				return redistest.SwallowReply
			}
			return redistest.Pass
		})
		c.handOver()() // the poll's answer, that it holds the key, is swallowed
		first.cancel()
		assert.NotErrorIs(c, <-first.done, leasehold.ErrBusy)
		c.gets(heir, 0)
		require.NoError(c, heir.lock.Release())
		assert.Empty(c, get(c, c.rdb, key))
	})
}

// Places of those that are gone: one whose inbox nobody hears costs nothing, and one
// that is heard but does not take the key 1.5 s.
func TestG6_DeadWaitersAreSkipped(t *testing.T) {
	for mark, soon := range map[string]time.Duration{":": 0, "~": 1502 * time.Millisecond} {
		t.Run(mark, func(t *testing.T) {
			inContest(t, func(c *contest) {
				const value = "5f6e4b1c-55a5-4b0b-9f0f-2a43f1a0c0de"
				require.NoError(c, c.rdb.ZAdd(c.Context(), queue, redis.Z{Score: 1, Member: "4" + mark + "gone" + value}).Err())
				require.NoError(c, c.rdb.ZAdd(c.Context(), queue, redis.Z{Score: 2, Member: "not of ours"}).Err())
				w := c.contender()
				require.NoError(c, c.holder.Release())
				c.gets(w, soon)
				require.NoError(c, w.lock.Release())
			})
		})
	}
}

// A queue that Redis has lost comes back in its old order.
func TestG6_LostQueueComesBackInOrder(t *testing.T) {
	inContest(t, func(c *contest) {
		first, second := c.contender(), c.contender()
		_, before := c.members()
		require.NoError(c, c.rdb.Del(c.Context(), queue, record).Err())
		time.Sleep(time.Second)
		_, after := c.members()
		assert.Equal(c, before, after)
		third := c.contender()
		held := c.holder
		for _, w := range []*contender{first, second, third} {
			require.NoError(c, held.Release())
			c.gets(w, 0)
			held = w.lock
		}
		require.NoError(c, held.Release())
	})
}

// A poll that arrives when its value was served and released queues nothing.
func TestG6_LatePollQueuesNothing(t *testing.T) {
	inContest(t, func(c *contest) {
		client, wire := c.client()
		w := c.waits(client)
		next(wire, redistest.HoldRequest) // the poll that comes within a second
		time.Sleep(1100 * time.Millisecond)
		require.NoError(c, c.holder.Release())
		c.gets(w, 2*time.Second)
		require.NoError(c, w.lock.Release())
		acquire(c, c.holder)
		wire.Deliver()
		assert.Empty(c, c.rdb.Keys(c.Context(), "*queue*").Val())
		require.NoError(c, c.holder.Release())
		assert.Empty(c, get(c, c.rdb, key))
	})
}

// What a Client knows it need not ask: that it has the key, or waits for it.
func TestTryAcquire_OnABusyLineSendsNothing(t *testing.T) {
	inContest(t, func(c *contest) {
		client, _ := c.client(leasehold.WithMetadata("next"))
		tried := client.NewLock(key)
		w := c.waits(client)
		var sent atomic.Int32
		c.b.OnCommand(func(string, []string) { sent.Add(1) })
		busy := func(l *leasehold.Lock, holder string) {
			c.Helper()
			var busy *leasehold.BusyError
			require.ErrorAs(c, second(l.TryAcquire(c.Context())), &busy)
			assert.Equal(c, holder, busy.Holder)
			assert.Greater(c, busy.Remaining, 5*time.Second)
			assert.LessOrEqual(c, busy.Remaining, 10*time.Second)
		}
		before := sent.Load()
		busy(tried, "the holder")
		assert.Equal(c, before, sent.Load())
		require.NoError(c, c.holder.Release())
		c.gets(w, 0)
		before = sent.Load()
		busy(tried, "next")
		assert.Equal(c, before, sent.Load())
		require.NoError(c, w.lock.Release())
		require.NoError(c, second(tried.TryAcquire(c.Context())))
		require.NoError(c, tried.Release())
	})
}

// Whoever gives up does so at once, the head and those behind it, and says busy.
func TestG10_WaiterLeavesAtOnce(t *testing.T) {
	inContest(t, func(c *contest) {
		client, _ := c.client()
		head := c.waits(client)
		second := c.waits(client)
		bounded := c.waits(client, leasehold.WithWait(300*time.Millisecond))
		began := time.Now()
		assert.ErrorIs(c, <-bounded.done, leasehold.ErrBusy)
		assert.Equal(c, 100*time.Millisecond, bounded.at.Sub(began))
		for _, w := range []*contender{second, head} {
			began := time.Now()
			w.cancel()
			err := <-w.done
			assert.ErrorIs(c, err, leasehold.ErrBusy)
			assert.ErrorIs(c, err, context.Canceled)
			assert.LessOrEqual(c, w.at.Sub(began), time.Millisecond)
		}
		synctest.Wait()
		assert.Empty(c, c.rdb.Keys(c.Context(), "*queue*").Val())
	})
}

// One line costs at most two scripts a second, however many wait in it, and two per
// TTL of a holder with a short one.
func TestG11_CostOfALine(t *testing.T) {
	inContest(t, func(c *contest) {
		client, _ := c.client()
		for range 20 {
			c.waits(client)
		}
		var scripts atomic.Int32
		c.b.OnCommand(func(cmd string, _ []string) {
			if strings.HasPrefix(cmd, "EVAL") {
				scripts.Add(1)
			}
		})
		time.Sleep(20 * time.Second)
		const renewals = 4
		assert.LessOrEqual(c, scripts.Load(), int32(2*20+renewals))
		assert.GreaterOrEqual(c, scripts.Load(), int32(20), "polling is the net")
	})
}
