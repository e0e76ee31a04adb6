package leasehold_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

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
