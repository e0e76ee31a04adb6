package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

// A key of another type is a stranger's, whichever type it has, and nothing of ours
// changes it.
func TestRefusals_KeyOfAnotherType(t *testing.T) {
	t.Parallel()
	types := map[string]string{
		"list": "RPUSH %s x", "hash": "HSET %s f x", "stream": "XADD %s 1-1 f x", "set": "SADD %s x", "sorted set": "ZADD %s 1 x",
	}
	for name, command := range types {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, nil, nil)
			put := func(name string) string {
				key := "orders:" + name
				s.do("DEL " + key)
				s.do(fmt.Sprintf(command, key))
				return s.admin.Dump(s.ctx, key).Val()
			}
			r := refusal{prefixes: []string{"WRONGTYPE"}}

			before := put("free")
			r.refused(t, second(s.c.NewLock("orders:free").TryAcquire(s.ctx)), "acquire", "free")
			r.refused(t, second(s.c.NewLock("orders:free").Acquire(s.ctx)), "acquire", "free")

			require.NoError(t, s.admin.Set(s.ctx, "orders:busy", "stranger", 0).Err())
			waits := s.wait(s.ctx, s.c.NewLock("orders:busy"))
			eventually(t, func() bool { return s.count("busy") >= 2 }, "a wait")
			put("busy")
			r.refused(t, <-waits, "acquire", "busy")

			for name, opt := range map[string]leasehold.Option{
				"renewed": leasehold.WithRenewEvery(100 * time.Millisecond), "released": leasehold.WithoutRenewal(),
			} {
				l, lease := s.hold(name, leasehold.WithTTL(time.Minute), opt)
				put(name)
				if name == "renewed" {
					ends(t, lease)
				}
				var lost *leasehold.LostError
				require.ErrorAs(t, l.Release(), &lost)
				assert.Equal(t, leasehold.LossTaken, lost.Reason, name)
				assert.Equal(t, before, s.admin.Dump(s.ctx, "orders:"+name).Val(), name)
			}

			s.orphan()
			put("orphan")
			s.orphaned.Store(true)
			dead := func() bool { return s.admin.Exists(s.ctx, "{orders:orphan}:leasehold:record:").Val() == 1 }
			eventually(t, dead, "clean-up makes the value dead")
			assert.Equal(t, before, s.admin.Dump(s.ctx, "orders:orphan").Val())
			require.NoError(t, s.c.Close())
			assert.Zero(t, s.log.count("clean-up"), s.log)
			assert.LessOrEqual(t, s.count("free"), 8, "two acquires, and one clean-up of each")
		})
	}
}

// What was made of the record does not stand in the way of a key that is held.
func TestRefusals_RecordOfAnotherType(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil, nil)
	r := refusal{prefixes: []string{"WRONGTYPE"}}
	l, lease := s.hold("held", leasehold.WithTTL(time.Minute), leasehold.WithRenewEvery(100*time.Millisecond))
	s.do("DEL {orders:held}:leasehold:record:")
	s.do("RPUSH {orders:held}:leasehold:record: x")
	renewedSince(t, l, time.Now(), time.Minute)
	require.NoError(t, lease.Err())
	require.NoError(t, l.Release())
	assert.Zero(t, s.admin.Exists(s.ctx, "orders:held").Val())
	r.refused(t, second(l.TryAcquire(s.ctx)), "acquire", "held")
	eventually(t, func() bool { return s.logged("held", "has failed") == 1 }, "clean-up is refused too, once")
	assert.Zero(t, s.admin.Exists(s.ctx, "orders:held").Val())
	assert.EqualValues(t, 1, s.admin.LLen(s.ctx, "{orders:held}:leasehold:record:").Val())
}

// A server that has forgotten the scripts is told them again, once for each.
func TestRefusals_ScriptFlush(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil, nil)
	l, lease := s.hold("held", leasehold.WithTTL(time.Minute), leasehold.WithRenewEvery(100*time.Millisecond))
	for range 3 {
		s.do("SCRIPT FLUSH")
		renewedSince(t, l, time.Now(), time.Minute)
	}
	s.do("SCRIPT FLUSH")
	_, err := s.c.NewLock("orders:held").TryAcquire(s.ctx)
	assert.ErrorIs(t, err, leasehold.ErrBusy)
	s.do("SCRIPT FLUSH")
	require.NoError(t, lease.Err())
	require.NoError(t, l.Release())
	acquire(t, l)
	require.NoError(t, l.Release())
	assert.Zero(t, s.log.count("failed"), s.log)
	assert.Zero(t, s.admin.Exists(s.ctx, "orders:held").Val())
}

// A client whose connections lead to a replica is told what is busy, and no more.
func TestRefusals_ClientOfAReplica(t *testing.T) {
	t.Parallel()
	primary := newStage(t, []string{"--repl-diskless-sync-delay", "0"}, nil)
	_, port, err := net.SplitHostPort(primary.server.Addr())
	require.NoError(t, err)
	s := newStage(t, nil, nil)
	s.do("REPLICAOF 127.0.0.1 " + port)
	s.eventuallyTells("INFO replication", "master_link_status:up")
	l, _ := primary.hold("held", leasehold.WithTTL(time.Minute))
	eventually(t, func() bool { return s.admin.Exists(s.ctx, "orders:held").Val() == 1 }, "replication")

	r := refusal{prefixes: []string{"READONLY"}}
	assert.ErrorIs(t, second(s.c.NewLock("orders:held").TryAcquire(s.ctx)), leasehold.ErrBusy)
	r.refused(t, second(s.c.NewLock("orders:free").TryAcquire(s.ctx)), "acquire", "free")
	r.meetBoundedWait(s)
	require.NoError(t, l.Release())
	eventually(t, func() bool { return s.admin.Exists(s.ctx, "orders:held").Val() == 0 }, "replication")
	r.refused(t, second(s.c.NewLock("orders:held").TryAcquire(s.ctx)), "acquire", "held")
}

// Whatever Redis answers, on a clock that is exact: over what passes a wait goes on,
// with anything else it ends at once; a lease is lost at its deadline and no
// earlier; and all that is tried on is tried seldom, and not for ever.
func TestRefusals_OnAnExactClock(t *testing.T) {
	for answer, passes := range map[string]bool{
		"LOADING Redis is loading the dataset in memory": true, "READONLY You can't write against a read only replica.": true,
		"CLUSTERDOWN The cluster is down": true, "MASTERDOWN Link with MASTER is down": true, "TRYAGAIN Multiple keys request": true,
		"OOM command not allowed": false, "MISCONF Redis is configured to save": false, "BUSY Redis is busy": false,
		"NOPERM this user has no permissions": false, "NOAUTH Authentication required.": false, "WRONGTYPE Operation": false,
		"NOREPLICAS Not enough good replicas to write.": false, "ERR max number of clients reached": false, "ERR unknown": false,
	} {
		t.Run(answer, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { meetInABubble(t, answer, passes) })
		})
	}
}

func meetInABubble(t *testing.T, answer string, passes bool) {
	b := redistest.NewBubble(t)
	var log lockedLog
	c := newClient(t, b.Client(t), leasehold.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	warm(t, c)
	var scripts atomic.Int32
	b.OnCommand(func(cmd string, _ []string) {
		if strings.HasPrefix(cmd, "EVAL") {
			scripts.Add(1)
		}
	})
	prefix, _, _ := strings.Cut(strings.TrimPrefix(answer, "ERR "), " ")
	r := refusal{prefixes: []string{prefix}}

	const ttl = 10 * time.Second
	released := c.NewLock("orders:released")
	acquire(t, released)
	l := c.NewLock("orders:held", leasehold.WithTTL(ttl))
	lease := acquire(t, l)
	acquired := time.Now()
	b.SetError(answer)
	r.refused(t, released.Release(), "release", "released")
	scripts.Store(0)
	ends(t, lease)
	assert.Equal(t, ttl-drift(ttl), time.Since(acquired), "lost at its deadline")
	assert.LessOrEqual(t, scripts.Load(), int32(8), "renewals from TTL/2 on")
	assert.ErrorIs(t, l.Release(), leasehold.ErrLost)
	scripts.Store(0)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- second(c.NewLock("orders:free").Acquire(ctx)) }()
	if passes {
		time.Sleep(20 * time.Second)
		assert.Empty(t, done, "the wait goes on")
		assert.LessOrEqual(t, scripts.Load(), int32(5+2*20))
		cancel()
		time.Sleep(time.Second)
		assert.Len(t, done, 1)
	}
	err := <-done
	r.refused(t, err, "acquire", "free")
	assert.Equal(t, passes, errors.Is(err, context.Canceled))
	if !passes {
		assert.Zero(t, time.Since(began), "it returns at once")
	}
	scripts.Store(0)
	time.Sleep(10 * time.Minute)
	assert.LessOrEqual(t, scripts.Load(), int32(2*60+1), "clean-up, which ends after a minute")
	b.SetError("")
}
