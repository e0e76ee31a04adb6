package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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
	require.NoError(t, s.admin.Set(s.ctx, "orders:busy", "stranger", 0).Err())
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
	err := second(s.c.NewLock("orders:busy").TryAcquire(s.ctx))
	if r.tellsBusy {
		assert.ErrorIs(t, err, leasehold.ErrBusy)
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
		r.refused(t, err, "acquire", "busy")
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

// A stage is a redis-server and who plays on it.
type stage struct {
	t      *testing.T
	ctx    context.Context
	server *redistest.Server
	admin  *redis.Client // of a user of its own, who may do everything
	wire   *redistest.Wire
	c      *leasehold.Client
	log    *lockedLog

	// orphaned is true from the time on at which nothing is lost any more of what
	// goes to the key "orders:orphan".
	orphaned atomic.Bool

	mu   sync.Mutex
	sent map[string]int // scripts that went over the wire for each key
}

func newStage(t *testing.T, args []string, prepare func(*stage)) *stage {
	t.Helper()
	s := &stage{t: t, ctx: t.Context(), wire: redistest.NewWire(), log: &lockedLog{}, sent: map[string]int{}}
	s.server = redistest.NewServer(t, args...)
	first := s.server.Client(t)
	require.NoError(t, first.Do(s.ctx, words("ACL SETUSER admin on >pw allcommands allkeys allchannels")...).Err())
	s.admin = s.server.Client(t, func(o *redis.Options) {
		o.Username, o.Password, o.PoolSize, o.MaxRetries = "admin", "pw", 1, -1
	})
	if prepare != nil {
		prepare(s)
	}
	s.wire.Decide(s.fate)
	// One idle connection at most, so that one at most is found dead.
	rdb := s.server.Client(t, s.wire.Attach, func(o *redis.Options) { o.MaxIdleConns = 1 })
	s.c = newClient(t, rdb, leasehold.WithLogger(slog.New(slog.NewTextHandler(s.log, nil))))
	warm(t, s.c)
	return s
}

// fate counts scripts. The acquire of "orders:orphan" is carried out without an
// answer, and what follows it lost.
func (s *stage) fate(request string) redistest.Fate {
	if !strings.Contains(request, "\r\neval") {
		return redistest.Pass
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, rest, _ := strings.Cut(request, "\r\norders:")
	name, _, _ := strings.Cut(rest, "\r\n")
	s.sent[name]++
	switch {
	case name != "orphan" || s.orphaned.Load():
		return redistest.Pass
	case s.sent[name] == 1:
		return redistest.SwallowReply
	}
	return redistest.LoseRequest
}

func (s *stage) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[name]
}

// do has the admin carry out a command without spaces in its arguments.
func (s *stage) do(command string) {
	s.t.Helper()
	require.NoError(s.t, s.admin.Do(s.ctx, words(command)...).Err(), command)
}

// send sends a command that takes its time, and answers when it has ended.
func (s *stage) send(args ...any) <-chan error {
	rdb := s.server.Client(s.t, func(o *redis.Options) {
		o.Username, o.Password, o.ReadTimeout, o.MaxRetries = "admin", "pw", -1, -1
	})
	done := make(chan error, 1)
	// Owned by the test; ends with the command, or with its server.
	go func() { done <- rdb.Do(context.Background(), args...).Err() }()
	return done
}

func (s *stage) eventuallyTells(command, what string) {
	s.t.Helper()
	eventually(s.t, func() bool {
		text, err := s.admin.Do(s.ctx, words(command)...).Text()
		return err == nil && strings.Contains(text, what)
	}, what)
}

func (s *stage) eventuallyRefuses(command, prefix string) {
	s.t.Helper()
	eventually(s.t, func() bool { return redis.HasErrorPrefix(s.admin.Do(s.ctx, words(command)...).Err(), prefix) }, prefix)
}

// logged counts the lines of the log that name a key and hold what is wanted.
func (s *stage) logged(name, what string) (count int) {
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "key=orders:"+name+" ") && strings.Contains(line, what) {
			count++
		}
	}
	return count
}

// hold acquires a key.
func (s *stage) hold(name string, opts ...leasehold.Option) (*leasehold.Lock, context.Context) {
	s.t.Helper()
	l := s.c.NewLock("orders:"+name, opts...)
	return l, acquire(s.t, l)
}

// wait begins an Acquire and answers when it has ended.
func (s *stage) wait(ctx context.Context, l *leasehold.Lock) <-chan error {
	done := make(chan error, 1)
	// Owned by the test; ends with ctx.
	go func() { done <- second(l.Acquire(ctx)) }()
	return done
}

// orphan has an acquire take "orders:orphan" for an hour without an answer, and
// gives it up. Its clean-up gets through to Redis when orphaned is set.
func (s *stage) orphan() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	done := s.wait(ctx, s.c.NewLock("orders:orphan", leasehold.WithTTL(time.Hour)))
	eventually(s.t, func() bool { return s.admin.Exists(s.ctx, "orders:orphan").Val() == 1 }, "the orphan's acquire")
	cancel()
	assert.Error(s.t, <-done)
}

func words(command string) (args []any) {
	for _, word := range fields(command) {
		args = append(args, word)
	}
	return args
}

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
