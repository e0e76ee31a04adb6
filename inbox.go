package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

const (
	// inboxIdle is how long an inbox stays open after the last wait.
	inboxIdle = 30 * time.Second
	// inboxQuiet is how long a connection may be silent before it has to answer a
	// ping, and how long it may take for that.
	inboxQuiet = 5 * time.Second
	// inboxRefused is the longest pause before a Redis that refused the subscription
	// is asked for it again.
	inboxRefused = 30 * time.Second
)

// An inbox is a Client's one subscription, on which its lines are woken. It is open
// while a line waits and for a time after, and is opened again when it was lost.
// What it hears are hints: whatever is lost, late or repeated, the polls of the
// lines find the truth.
type inbox struct {
	rdb     redis.UniversalClient
	log     *slog.Logger
	channel string
	where   string // the address of this inbox, empty where none can work

	heard  func(message string) // called for each message; does not block
	opened func()               // called when it was opened, and opened again

	// now is the subscription that Redis has confirmed; nil while there is none.
	now atomic.Pointer[subscription]

	mu     sync.Mutex
	users  int           // lines that wait
	last   *subscription // the one that runs or ran last; nil before the first
	idle   *time.Timer   // ends last when nobody has waited for a time
	closed bool
}

// A subscription is the time from an inbox's opening to its closing, over any number
// of connections.
type subscription struct {
	end   context.CancelFunc
	ended chan struct{} // closed when its goroutine has ended
	over  bool          // end was called; guarded by the inbox's mutex
}

func newInbox(rdb redis.UniversalClient, prefix string, log *slog.Logger) *inbox {
	in := &inbox{rdb: rdb, log: log, channel: prefix + "leasehold:inbox:" + uuid.NewString()}
	switch rdb.(type) {
	case *redis.Client:
		in.where = newAddress(in.channel, heardHere)
	case *redis.Ring:
		// It would subscribe on one of its servers, and scripts publish on others.
	default:
		in.where = newAddress(in.channel, heardElsewhere)
	}
	return in
}

// address returns where a line is woken, empty while it cannot be.
func (in *inbox) address() string {
	if in.now.Load() == nil {
		return ""
	}
	return in.where
}

// enter opens the inbox for a line that waits, until leave.
func (in *inbox) enter() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.users++
	if in.idle != nil {
		in.idle.Stop()
	}
	switch {
	case in.closed || in.last != nil && !in.last.over:
	case in.where == "":
		in.degraded(errors.New("redis.Ring has no subscription that all of its servers publish to"))
		in.last = &subscription{ended: make(chan struct{}), end: func() {}} // says it once
		close(in.last.ended)
	default:
		ctx, cancel := context.WithCancel(context.Background())
		s := &subscription{end: cancel, ended: make(chan struct{})}
		in.last = s
		// Owned by the inbox; ends when its context does, once the client's own
		// timeouts have ended what hangs; close waits for it.
		go in.run(ctx, s)
	}
}

// leave ends what enter began.
func (in *inbox) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.users--; in.users > 0 || in.closed {
		return
	}
	if in.idle == nil {
		in.idle = time.AfterFunc(inboxIdle, in.endIdle) // owned by the inbox; stopped by enter and close
	} else {
		in.idle.Reset(inboxIdle)
	}
}

func (in *inbox) endIdle() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.users == 0 && in.where != "" {
		in.endLocked()
	}
}

// endLocked ends the subscription. A line that comes now starts another, which may
// open before this one has ended: each withdraws only itself.
func (in *inbox) endLocked() {
	if s := in.last; s != nil {
		s.over = true
		in.now.CompareAndSwap(s, nil)
		s.end()
	}
}

// close ends the inbox for good, and waits for its goroutine until ctx ends.
func (in *inbox) close(ctx context.Context) {
	in.mu.Lock()
	in.closed = true
	if in.idle != nil {
		in.idle.Stop()
	}
	in.endLocked()
	last := in.last
	in.mu.Unlock()
	if last != nil {
		select {
		case <-last.ended:
		case <-ctx.Done():
		}
	}
}

// run keeps the inbox subscribed until ctx ends.
func (in *inbox) run(ctx context.Context, s *subscription) {
	defer close(s.ended)
	defer s.end()
	for failures := 0; ; failures++ {
		wasOpen, err := in.listen(ctx, s)
		in.now.CompareAndSwap(s, nil)
		if ctx.Err() != nil {
			return
		}
		if wasOpen {
			failures = 0
		}
		if failures == 0 {
			in.degraded(err)
		}
		pause := backoff(failures + 1)
		if isReply(err) {
			pause = min(pause<<min(failures, 10), inboxRefused)
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

func (in *inbox) degraded(err error) {
	in.log.Warn("leasehold: no wake-ups are heard, so waiting polls more often", "error", err)
}

// listen subscribes and hears until it fails, and tells whether it ever was open.
// go-redis dials anew by itself, within the call that finds its connection broken,
// and a confirmation tells when it has; a connection that is silent though pinged is
// given up here.
func (in *inbox) listen(ctx context.Context, s *subscription) (wasOpen bool, err error) {
	pubsub := in.rdb.Subscribe(ctx, in.channel)
	defer pubsub.Close() // fails where it was closed already
	stop := context.AfterFunc(ctx, func() { pubsub.Close() })
	defer stop()
	for pinged := false; ; {
		message, err := pubsub.ReceiveTimeout(ctx, inboxQuiet)
		open := in.now.Load() == s
		var timeout net.Error
		switch {
		case err == nil:
			pinged = false
			if in.take(s, message) {
				wasOpen = true
			}
		case errors.As(err, &timeout) && timeout.Timeout() && open && !pinged:
			if err := pubsub.Ping(ctx); err != nil {
				return wasOpen, err
			}
			pinged = true
		case !open || pinged || isReply(err) || ctx.Err() != nil:
			return wasOpen, err
		default:
			in.now.CompareAndSwap(s, nil)
		}
	}
}

// take takes one message, and tells whether it was the confirmation of a
// subscription.
func (in *inbox) take(s *subscription, message any) bool {
	switch message := message.(type) {
	case *redis.Subscription:
		in.mu.Lock()
		if !s.over {
			in.now.Store(s)
		}
		in.mu.Unlock()
		in.opened()
		return true
	case *redis.Message:
		in.heard(message.Payload)
	}
	return false
}
