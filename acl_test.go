package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

// leastRule is the ACL rule that a user of locks on the keys orders:* needs.
const leastRule = "~orders:* ~{orders:* &leasehold:inbox:* +evalsha +eval +get +set +del +pexpire +pttl +time" +
	" +zadd +zrange +zrem +zscore +publish +subscribe +ping"

// A restricted is a client of a user with a rule of its own.
type restricted struct {
	t     *testing.T
	ctx   context.Context
	admin *redis.Client
	wire  *redistest.Wire
	c     *leasehold.Client
	log   *lockedLog
}

func newRestricted(t *testing.T, rule string) *restricted {
	t.Helper()
	server := redistest.NewServer(t)
	u := &restricted{t: t, ctx: t.Context(), admin: server.Client(t), wire: redistest.NewWire(), log: &lockedLog{}}
	u.allow(rule)
	rdb := server.Client(t, u.wire.Attach, func(o *redis.Options) { o.Username, o.Password = "orders", "pw" })
	u.c = newClient(t, rdb, leasehold.WithLogger(slog.New(slog.NewTextHandler(u.log, nil))))
	return u
}

// allow gives the user a rule in place of the one it had.
func (u *restricted) allow(rule string) {
	u.t.Helper()
	require.NoError(u.t, u.admin.Do(u.ctx, words("ACL SETUSER orders reset on >pw "+rule)...).Err())
}

// waits has a caller wait for a busy key until it is queued there, or polls because
// it cannot be, and then frees the key.
func (u *restricted) waits(key string) error {
	u.t.Helper()
	require.NoError(u.t, u.admin.Set(u.ctx, key, "stranger", 0).Err())
	defer u.admin.Del(u.ctx, key, "{"+key+"}:leasehold:queue:")
	done := make(chan error, 1)
	l := u.c.NewLock(key)
	// Owned by the test, which receives; ends with the Acquire.
	go func() { done <- second(l.Acquire(u.ctx)) }()
	eventually(u.t, func() bool {
		return len(done) > 0 || u.log.count("no wake-ups are heard") > 0 ||
			u.admin.ZCard(u.ctx, "{"+key+"}:leasehold:queue:").Val() > 0
	}, "a wait")
	require.NoError(u.t, u.admin.Del(u.ctx, key).Err())
	err := <-done
	_ = l.Release()
	return err
}

// giveUp has an acquire take a key for an hour without an answer, and gives it up
// after then was called.
func (u *restricted) giveUp(key string, then func()) {
	u.t.Helper()
	ctx, cancel := context.WithCancel(u.ctx)
	defer cancel()
	var once sync.Once
	u.wire.Decide(func(request string) redistest.Fate {
		fate := redistest.Pass
		if strings.Contains(request, key) {
			once.Do(func() { fate = redistest.SwallowReply })
			if fate == redistest.Pass && ctx.Err() == nil {
				fate = redistest.LoseRequest
			}
		}
		return fate
	})
	done := make(chan error, 1)
	// Owned by the test; ends with ctx.
	go func() { done <- second(u.c.NewLock(key, leasehold.WithTTL(time.Hour)).Acquire(ctx)) }()
	eventually(u.t, func() bool { return u.admin.Exists(u.ctx, key).Val() == 1 }, "the acquire")
	then()
	cancel()
	assert.Error(u.t, <-done)
}

// logged returns the first line of the log that names a key and holds what is wanted.
func (u *restricted) logged(key, what string) (found string) {
	u.t.Helper()
	eventually(u.t, func() bool {
		for line := range strings.Lines(u.log.String()) {
			if strings.Contains(line, "key="+key+" ") && strings.Contains(line, what) {
				found = line
				return true
			}
		}
		return false
	}, what+" of "+key)
	return found
}

func TestACL_LeastRuleIsEnough(t *testing.T) {
	t.Parallel()
	u := newRestricted(t, leastRule)
	for _, key := range []string{"orders:42", "orders:{a}:42", "orders:{"} {
		l := u.c.NewLock(key, leasehold.WithTTL(time.Minute), leasehold.WithRenewEvery(50*time.Millisecond))
		lease := acquire(t, l)
		at := time.Now()
		_, err := u.c.NewLock(key).TryAcquire(u.ctx)
		assert.ErrorIs(t, err, leasehold.ErrBusy)
		waits := make(chan error, 1)
		next := u.c.NewLock(key)
		// Owned by the test, which waits for it.
		go func() { waits <- second(next.Acquire(u.ctx)) }()
		renewedSince(t, l, at, time.Minute)
		require.NoError(t, lease.Err())
		require.NoError(t, l.Release())
		require.NoError(t, <-waits)
		require.NoError(t, next.Release())
		assert.Zero(t, u.admin.Exists(u.ctx, key).Val())
	}
	u.giveUp("orders:orphan", func() {})
	eventually(t, func() bool { return u.admin.Exists(u.ctx, "orders:orphan").Val() == 0 }, "clean-up")
	require.NoError(t, u.c.Close())
	assert.Empty(t, u.admin.ACLLog(u.ctx, 100).Val(), "Redis has refused something")
	assert.Zero(t, u.log.count("clean-up"), u.log)

	_, err := newRestricted(t, leastRule).c.NewLock("invoices:42").TryAcquire(u.ctx)
	assert.True(t, redis.HasErrorPrefix(err, "NOPERM"), "%v", err)
}

// Without one part of the rule some calls fail, and each says which of its script's
// needs may be what is missing. The others work.
func TestACL_EachPartIsNeeded(t *testing.T) {
	t.Parallel()
	for part, fails := range map[string]string{
		"~orders:*":  "acquire busy wait renew release clean-up",
		"~{orders:*": "acquire busy wait release clean-up",
		"+evalsha":   "acquire busy wait renew release clean-up",
		"+eval":      "acquire busy wait renew release clean-up",
		"+get":       "acquire busy wait renew release clean-up",
		"+set":       "acquire wait clean-up",
		"+del":       "release clean-up",
		"+pexpire":   "wait renew",
		"+pttl":      "busy wait",
		"+time":      "acquire busy wait clean-up",
		"+zrange":    "acquire wait",
		"+zadd":      "wait",
		"+zrem":      "wait",
		"+zscore":    "wait",
		// Without these a wait polls.
		"+publish": "", "+subscribe": "", "+ping": "", "&leasehold:inbox:*": "",
	} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			u := newRestricted(t, leastRule)
			u.lack(part, strings.Fields(fails))
		})
	}
}

// lack takes a part of the rule away while locks are held, and tries each call.
func (u *restricted) lack(part string, fails []string) {
	t := u.t
	renewed := u.c.NewLock("orders:renewed", leasehold.WithTTL(time.Minute), leasehold.WithRenewEvery(50*time.Millisecond))
	lease := acquire(t, renewed)
	released := u.c.NewLock("orders:released", leasehold.WithTTL(time.Minute))
	acquire(t, released)
	require.NoError(t, u.admin.Set(u.ctx, "orders:busy", "stranger", 0).Err())
	var at time.Time
	u.giveUp("orders:orphan", func() {
		u.allow(strings.Join(without(fields(leastRule), part), " "))
		require.NoError(t, u.admin.ScriptFlush(u.ctx).Err())
		at = time.Now()
	})

	answers := map[string]error{}
	answers["acquire"] = second(u.c.NewLock("orders:acquire").TryAcquire(u.ctx))
	answers["busy"] = second(u.c.NewLock("orders:busy").TryAcquire(u.ctx))
	answers["wait"] = errors.Join(u.waits("orders:wait"), u.waits("orders:wait")) // the second with an inbox from the start
	answers["release"] = released.Release()
	for _, call := range fails {
		script, key := "acquire", "orders:"+call
		var text string
		switch call {
		case "acquire", "busy", "wait":
			text = u.refused(call, answers[call])
		case "release":
			script, key = "release", "orders:released"
			text = u.refused(call, answers[call])
		case "renew":
			script, key = "renew", "orders:renewed"
			text = u.logged(key, "a renewal failed")
			assert.NoError(t, lease.Err(), "a refused renewal is not a loss")
		case "clean-up":
			script, key = "release", "orders:orphan"
			text = u.logged(key, "clean-up after an acquire that was given up has failed")
		}
		delete(answers, call)
		assert.Contains(t, text, key, call)
		_, needs, _ := strings.Cut(text, "script "+script+" needs ")
		need, isCommand := strings.CutPrefix(part, "+")
		if !isCommand {
			need = "on the key and its auxiliary keys"
		}
		assert.Contains(t, needs, need, "%s: %s", call, text)
	}
	u.works(answers, fails)
	if !slices.Contains(fails, "renew") {
		renewedSince(t, renewed, at, time.Minute)
	}
	if !slices.Contains(fails, "clean-up") {
		eventually(t, func() bool { return u.admin.Exists(u.ctx, "orders:orphan").Val() == 0 }, "clean-up")
	}
	if slices.Contains(fails, "acquire") {
		eventually(t, func() bool { return u.admin.Exists(u.ctx, "orders:acquire").Val() == 0 }, "a refused acquire leaves no key")
	}
	u.allow(leastRule)
	require.NoError(t, renewed.Release())
}

// works checks the answers of the calls that need nothing of what is missing.
func (u *restricted) works(answers map[string]error, fails []string) {
	for call, err := range answers {
		if call == "busy" {
			assert.ErrorIs(u.t, err, leasehold.ErrBusy)
		} else {
			assert.NoError(u.t, err, "%s, though only %v should fail", call, fails)
		}
	}
}

// without returns words less one.
func without(words []string, one string) []string {
	return slices.DeleteFunc(words, func(word string) bool { return word == one })
}

// refused checks the error of a call that may not do what it needs, and returns its text.
func (u *restricted) refused(call string, err error) string {
	u.t.Helper()
	require.Error(u.t, err, call)
	for _, never := range []error{leasehold.ErrBusy, leasehold.ErrLost, leasehold.ErrNotHeld} {
		assert.NotErrorIs(u.t, err, never, call)
	}
	assert.True(u.t, redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, notInScripts), "%s: %v", call, err)
	return fmt.Sprint(err)
}

// A release that freed the key and was refused afterwards has worked: it had to make
// the value dead, too, and may not.
func TestG7_ReleaseRefusedHalfway(t *testing.T) {
	t.Parallel()
	u := newRestricted(t, leastRule)
	warm := u.c.NewLock("orders:warm")
	acquire(t, warm)
	require.NoError(t, warm.Release())
	next(u.wire, redistest.LoseReply)
	l := u.c.NewLock("orders:42")
	acquire(t, l)
	u.allow(leastRule + " -set")
	err := l.Release()
	require.Error(t, err)
	assert.NotErrorIs(t, err, leasehold.ErrLost)
	assert.Zero(t, u.admin.Exists(u.ctx, "orders:42").Val(), "the key is free")
	u.allow(leastRule)
	assert.NoError(t, l.Release(), "it was ours to the end")
}

// A record of another type does not keep a key that is ours.
func TestG5_RecordOfAnotherTypeKeepsNoKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, wire, rdb := wired(t, r)
		next(wire, redistest.LoseReply)
		l := c.NewLock(key)
		acquire(t, l)
		require.NoError(t, rdb.Del(t.Context(), record).Err())
		require.NoError(t, rdb.RPush(t.Context(), record, "x").Err())
		assert.True(t, redis.HasErrorPrefix(l.Release(), "WRONGTYPE"))
		assert.Empty(t, get(t, rdb, key))
		require.NoError(t, rdb.Del(t.Context(), record).Err())
		assert.NoError(t, l.Release())
	})
}
