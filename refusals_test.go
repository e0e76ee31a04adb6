package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
)

// A refusal is a state of a redis-server in which it refuses what locks need.
type refusal struct {
	prefixes []string // with one of which Redis's answer begins
	args     func(t *testing.T) []string
	prepare  func(s *stage)
	begin    func(s *stage) (end func())

	tellsBusy   bool // a busy key is still told busy
	keeps       bool // renewal, release and clean-up of a key that is ours go on
	passes      bool // a wait goes on over it
	endsCleanup bool // asking again would not help
}

const notInScripts = "The user executing the script" // Redis 7.0's NOPERM inside a script

var refusals = map[string]refusal{
	"NOPERM on the command": {
		prefixes: []string{"NOPERM"}, endsCleanup: true, begin: forbid("-evalsha", "+@all"),
	},
	"NOPERM on the key": {
		prefixes: []string{"NOPERM"}, endsCleanup: true, begin: forbid("resetkeys", "allkeys"),
	},
	"NOPERM in the script": {
		prefixes: []string{"NOPERM", notInScripts}, endsCleanup: true, tellsBusy: true,
		begin: forbid("-set -del -pexpire", "+@all"),
	},
	"NOAUTH": {prefixes: []string{"NOAUTH"}, endsCleanup: true, begin: func(s *stage) func() {
		s.do("CONFIG SET requirepass secret")
		s.do("CLIENT KILL TYPE normal SKIPME yes")
		return func() { require.NoError(s.t, s.admin.ConfigSet(s.ctx, "requirepass", "").Err()) }
	}},
	"OOM": {prefixes: []string{"OOM"}, tellsBusy: true, keeps: true, begin: func(s *stage) func() {
		fill := strings.Repeat("x", 8<<20)
		require.NoError(s.t, s.admin.Set(s.ctx, "fill", fill, 0).Err())
		s.do("CONFIG SET maxmemory 6mb")
		s.eventuallyRefuses("SET more x", "OOM")
		return func() { s.do("DEL fill") }
	}},
	"READONLY": {prefixes: []string{"READONLY"}, tellsBusy: true, passes: true, begin: func(s *stage) func() {
		s.do("REPLICAOF 127.0.0.1 1")
		return func() { s.do("REPLICAOF NO ONE") }
	}},
	"MASTERDOWN": {prefixes: []string{"MASTERDOWN"}, passes: true, begin: func(s *stage) func() {
		s.do("CONFIG SET replica-serve-stale-data no")
		s.do("REPLICAOF 127.0.0.1 1")
		return func() { s.do("REPLICAOF NO ONE") }
	}},
	"LOADING": {
		prefixes: []string{"LOADING"}, passes: true, begin: reload,
		args: func(*testing.T) []string {
			return []string{"--enable-debug-command", "local", "--rdbcompression", "no"}
		},
	},
	"MISCONF": {
		prefixes: []string{"MISCONF"}, tellsBusy: true, begin: failToSave,
		// The last --dir counts. A directory in the place of the dump cannot be
		// overwritten, not even by root.
		args: func(t *testing.T) []string { return []string{"--dir", t.TempDir(), "--save", "3600 1000000"} },
	},
	"BUSY": {
		prefixes: []string{"BUSY"}, begin: loopForEver,
		args: func(*testing.T) []string { return []string{"--lua-time-limit", "20"} },
	},
	"CLUSTERDOWN": {
		prefixes: []string{"CLUSTERDOWN"}, passes: true,
		args: func(t *testing.T) []string {
			return []string{"--cluster-enabled", "yes", "--cluster-port", clusterPort(t)}
		},
		prepare: func(s *stage) {
			s.do("CLUSTER ADDSLOTSRANGE 0 16383")
			s.eventuallyTells("CLUSTER INFO", "cluster_state:ok")
		},
		begin: func(s *stage) func() {
			s.do("CLUSTER DELSLOTS 0")
			s.eventuallyTells("CLUSTER INFO", "cluster_state:fail")
			return func() { s.do("CLUSTER ADDSLOTS 0"); s.eventuallyTells("CLUSTER INFO", "cluster_state:ok") }
		},
	},
}

func forbid(without, with string) func(s *stage) func() {
	return func(s *stage) func() {
		s.do("ACL SETUSER default " + without)
		return func() { s.do("ACL SETUSER default " + with) }
	}
}

// reload has the server load its keys again, slowly.
func reload(s *stage) func() {
	s.do("CONFIG SET loading-process-events-interval-bytes 1024")
	s.do("CONFIG SET key-load-delay 2000")
	s.do("DEBUG POPULATE 20000 fill 1024")
	done := s.send("DEBUG", "RELOAD")
	s.eventuallyRefuses("PING", "LOADING")
	return func() { s.do("CONFIG SET key-load-delay 0"); assert.NoError(s.t, <-done) }
}

// failToSave has the server fail to save its keys, after which it takes no writes.
func failToSave(s *stage) func() {
	dump := filepath.Join(s.admin.ConfigGet(s.ctx, "dir").Val()["dir"], "dump.rdb")
	require.NoError(s.t, os.Mkdir(dump, 0o700))
	s.do("BGSAVE")
	s.eventuallyTells("INFO persistence", "rdb_last_bgsave_status:err")
	return func() {
		require.NoError(s.t, os.Remove(dump))
		s.do("BGSAVE")
		s.eventuallyTells("INFO persistence", "rdb_last_bgsave_status:ok")
	}
}

// loopForEver has the server run a script without end.
func loopForEver(s *stage) func() {
	done := s.send("EVAL", "while true do end", 0)
	s.eventuallyRefuses("PING", "BUSY")
	return func() {
		s.do("SCRIPT KILL")
		assert.ErrorContains(s.t, <-done, "killed")
	}
}

func clusterPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// Each call meets each refusal, for longer than one lease and shorter than another.
func TestRefusals(t *testing.T) {
	for name, r := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var args []string
			if r.args != nil {
				args = r.args(t)
			}
			s := newStage(t, args, r.prepare)
			r.meet(s)
		})
	}
}

func (r refusal) meet(s *stage) {
	t, long := s.t, 30*time.Second
	held, lease := s.hold("held", leasehold.WithTTL(long), leasehold.WithRenewEvery(200*time.Millisecond))
	eventually(t, func() bool { return s.count("held") >= 2 }, "the renewal script is known")
	released, _ := s.hold("released", leasehold.WithTTL(time.Minute))
	for _, name := range []string{"busy", "taken"} {
		require.NoError(t, s.admin.Set(s.ctx, "orders:"+name, "stranger", 0).Err())
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	waits := s.wait(ctx, s.c.NewLock("orders:busy"))
	s.orphan()
	short := time.Second
	if r.keeps {
		short = time.Minute
	}
	doomedAt := time.Now()
	doomed, doomedLease := s.hold("doomed", leasehold.WithTTL(short))

	began, before := time.Now(), s.count("held")
	end := r.begin(s)
	begun := time.Now()
	s.orphaned.Store(true)
	r.meetAcquire(s, waits, cancel)
	late := s.wait(s.ctx, s.c.NewLock("orders:late", leasehold.WithTTL(long)))
	if !r.passes {
		r.refused(t, <-late, "acquire", "late")
	}
	if r.keeps {
		renewedSince(t, held, begun, long)
		require.NoError(t, released.Release())
		require.NoError(t, doomed.Release())
	} else {
		r.refused(t, released.Release(), "release", "released")
		r.losesAtDeadline(t, doomedLease, doomedAt)
		assert.ErrorIs(t, doomed.Release(), leasehold.ErrLost)
		eventually(t, func() bool { return s.logged("held", "a renewal failed") == 1 }, "the log tells of the renewal")
		assert.LessOrEqual(t, s.count("held")-before, 3+int(time.Since(began)/(long/20)), "renewals of a lease of 30 s")
		assert.LessOrEqual(t, s.count("doomed"), 25, "renewals of a lease of 1 s")
		assert.LessOrEqual(t, s.count("released"), 1+3)
	}
	require.NoError(t, lease.Err(), "a refused renewal is not a loss")
	r.meetCleanup(s, began)

	end()
	ended := time.Now()
	renewedSince(t, held, ended, long)
	require.NoError(t, held.Release())
	if !r.keeps {
		require.NoError(t, released.Release(), "a second Release repeats the first")
	}
	if r.passes {
		require.NoError(t, <-late, "the wait has gone on")
		assert.LessOrEqual(t, s.count("late"), 2*(6+int(time.Since(began)/(500*time.Millisecond))), "tries of a wait")
	}
	r.cleanedUp(s)
}

// meetAcquire tries free and busy keys, and ends a wait that began before.
func (r refusal) meetAcquire(s *stage, waits <-chan error, cancel func()) {
	t := s.t
	r.refused(t, second(s.c.NewLock("orders:free").TryAcquire(s.ctx)), "acquire", "free")
	// Not the key that a line of this Client waits for: that is known to be busy.
	err := second(s.c.NewLock("orders:taken").TryAcquire(s.ctx))
	if r.tellsBusy {
		assert.ErrorIs(t, err, leasehold.ErrBusy)
		if r.endsCleanup {
			r.refused(t, <-waits, "acquire", "busy") // it may not keep its place
			return
		}
		cancel()
		assert.ErrorIs(t, <-waits, context.Canceled)
		eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(s.ctx, 100*time.Millisecond)
			defer cancel()
			err := second(s.c.NewLock("orders:busy").Acquire(ctx))
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			return errors.Is(err, leasehold.ErrBusy)
		}, "a wait that is answered ends with ErrBusy")
	} else {
		r.refused(t, err, "acquire", "taken")
		if !r.passes {
			r.refused(t, <-waits, "acquire", "busy")
			return
		}
		eventually(t, func() bool { return s.logged("busy", "goes on although Redis is away") > 0 }, "the wait meets it")
		cancel()
		err = <-waits
		assert.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, leasehold.ErrBusy, "that was not Redis's last answer")
	}
	if r.passes {
		r.meetBoundedWait(s)
	}
}

// meetBoundedWait lets waits of a free key end. One that was answered tells so; on a
// slow machine it may take some until one is.
func (r refusal) meetBoundedWait(s *stage) {
	s.t.Helper()
	eventually(s.t, func() bool {
		err := second(s.c.NewLock("orders:bounded", leasehold.WithWait(100*time.Millisecond)).Acquire(s.ctx))
		assert.ErrorIs(s.t, err, context.DeadlineExceeded)
		assert.NotErrorIs(s.t, err, leasehold.ErrBusy)
		return r.isCause(err)
	}, "the error of a wait that ended keeps its cause")
}

// refused checks the error of a call that Redis has refused.
func (r refusal) refused(t *testing.T, err error, op, name string) {
	t.Helper()
	require.Error(t, err)
	for _, never := range []error{leasehold.ErrBusy, leasehold.ErrLost, leasehold.ErrNotHeld} {
		assert.NotErrorIs(t, err, never)
	}
	assert.True(t, r.isCause(err), "the cause is kept: %v", err)
	assert.Contains(t, err.Error(), fmt.Sprintf("leasehold: %s %q: ", op, "orders:"+name))
}

func (r refusal) isCause(err error) bool {
	for _, prefix := range r.prefixes {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// losesAtDeadline waits for the loss of a lease of 1 s that is not renewed any more.
func (r refusal) losesAtDeadline(t *testing.T, lease context.Context, acquiredAfter time.Time) {
	t.Helper()
	ends(t, lease)
	assert.GreaterOrEqual(t, time.Since(acquiredAfter), time.Second-drift(time.Second), "lost before its deadline")
	var lost *leasehold.LostError
	require.ErrorAs(t, context.Cause(lease), &lost)
	assert.Equal(t, leasehold.LossExpired, lost.Reason)
}

// meetCleanup sees clean-up go on in moderation, or end where that is of no use.
func (r refusal) meetCleanup(s *stage, began time.Time) {
	switch {
	case r.endsCleanup:
		eventually(s.t, func() bool { return s.logged("orphan", "has failed") == 1 }, "the log tells that clean-up ended")
		assert.LessOrEqual(s.t, s.count("free"), 3+3)
	case r.keeps:
		eventually(s.t, func() bool { return s.admin.Exists(s.ctx, "orders:orphan").Val() == 0 }, "clean-up of a key that is ours")
		fallthrough
	default:
		eventually(s.t, func() bool { return s.logged("free", "clean-up was refused and goes on") == 1 }, "the log tells of clean-up")
		assert.LessOrEqual(s.t, s.count("free"), 2+int(time.Since(began)/(500*time.Millisecond))+2, "tries of clean-up")
	}
}

// cleanedUp sees what a refused acquire may have left go away, and its value dead.
func (r refusal) cleanedUp(s *stage) {
	if r.endsCleanup {
		assert.Positive(s.t, s.admin.PTTL(s.ctx, "orders:orphan").Val(), "its TTL ends it")
		assert.Equal(s.t, 1, s.logged("orphan", "has failed"))
		return
	}
	eventually(s.t, func() bool {
		return s.admin.Exists(s.ctx, "orders:orphan").Val() == 0 &&
			s.admin.Exists(s.ctx, "{orders:free}:leasehold:record:").Val() == 1
	}, "clean-up")
	assert.Zero(s.t, s.log.count("has failed"))
}

// renewedSince waits until a renewal that was sent after an instant has prolonged a lease.
func renewedSince(t testing.TB, l *leasehold.Lock, at time.Time, ttl time.Duration) {
	t.Helper()
	eventually(t, func() bool { return time.Now().Add(l.Remaining()).Sub(at) > ttl-drift(ttl) }, "a renewal")
}
