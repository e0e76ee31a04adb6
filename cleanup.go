package leasehold

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	cleanupEvery   = 500 * time.Millisecond
	cleanupAtOnce  = 64
	cleanupMost    = 100_000
	cleanupAtLeast = time.Minute // how long a value is tried, if its TTL is not longer
)

// The clean-up sees to it that an acquisition whose caller left has not left the
// key behind: it sends leave for each value until one is confirmed. That may be
// long after, when Redis hangs, and it may overtake the acquire it cleans up
// after, whose value is dead then.
type cleanup struct {
	log *slog.Logger

	mu      sync.Mutex
	values  []*givenUp    // oldest first
	running chan struct{} // closed when the goroutine ends; nil while there is none
	more    chan struct{} // holds one: something was added
	closed  bool          // nothing more is taken in

	stop     context.Context // ended by abort: nothing more is sent
	abort    context.CancelFunc
	nextTurn int // where the next round begins; the goroutine's own
}

// A givenUp is an acquisition in clean-up. Its fields are the goroutine's own.
type givenUp struct {
	*acquisition
	until instant // when it is given up for good
	dueAt instant // when it is tried next
	told  bool    // that it was refused was logged
	done  bool
}

func newCleanup(log *slog.Logger) *cleanup {
	stop, abort := context.WithCancel(context.Background())
	return &cleanup{log: log, more: make(chan struct{}, 1), stop: stop, abort: abort}
}

// add takes an acquisition in and sees that somebody works on it. The oldest has
// to go where there are too many.
func (c *cleanup) add(a *acquisition) {
	at := now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if len(c.values) >= cleanupMost {
		c.values = c.values[1:]
	}
	c.values = append(c.values, &givenUp{acquisition: a, until: at.add(max(cleanupAtLeast, a.ttl)), dueAt: at})
	select {
	case c.more <- struct{}{}:
	default:
	}
	if c.running == nil {
		c.running = make(chan struct{})
		// Owned by the clean-up; ends when nothing is left to clean up or at abort;
		// close waits for it.
		go c.run(c.running)
	}
}

// run works in rounds until nothing is left.
func (c *cleanup) run(ended chan struct{}) {
	defer close(ended)
	rounds := time.NewTicker(cleanupEvery)
	defer rounds.Stop()
	for {
		c.round()
		if !c.moreToDo() {
			return
		}
		select {
		case <-rounds.C:
		case <-c.more: // what was just given up must not keep anybody waiting
		case <-c.stop.Done():
		}
	}
}

// moreToDo takes out what is done, and ends the goroutine's time in the same
// breath if that was all, so that an add finds it running or starts another.
func (c *cleanup) moreToDo() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	rest := make([]*givenUp, 0, len(c.values))
	for _, v := range c.values {
		if v.done {
			v.inCleanup.Store(false)
		} else {
			rest = append(rest, v)
		}
	}
	c.values = rest
	if len(rest) > 0 && c.stop.Err() == nil {
		return true
	}
	c.running = nil
	return false
}

// round tries each value once, some at a time, for as long as a round may take.
// The next round begins where this one had to stop, so that the values of a node
// that hangs do not keep out the others.
func (c *cleanup) round() {
	ctx, cancel := context.WithTimeout(c.stop, cleanupEvery)
	defer cancel()
	c.mu.Lock()
	values := c.values
	c.mu.Unlock()

	var tries sync.WaitGroup
	defer tries.Wait()
	places := make(chan struct{}, cleanupAtOnce)
	for range values {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		v := values[c.nextTurn%len(values)]
		c.nextTurn++
		at := now()
		if v.dueAt.left(at) > 0 {
			<-places
			continue
		}
		v.dueAt = at.add(cleanupEvery / 2) // by the next tick, and not by the next addition
		// Owned by this round, which waits for it; ends with one try.
		tries.Go(func() {
			c.try(ctx, v)
			<-places
		})
	}
}

// try sends one leave, unless what was unanswered has turned out harmless.
func (c *cleanup) try(ctx context.Context, v *givenUp) {
	if v.calls.open.Load() <= 0 && !v.queued {
		v.done = true
		return
	}
	err := v.leave(ctx)
	switch {
	case err == nil:
		v.done = true
	case isRefusal(err), v.until.left(now()) == 0:
		v.done = true
		c.log.Warn("leasehold: clean-up after an acquire that was given up has failed; its TTL ends what it left",
			"key", v.name, "token", v.token()[:8], "error", err)
	case isReply(err) && !v.told:
		v.told = true
		c.log.Warn("leasehold: clean-up was refused and goes on", "key", v.name, "error", err)
	}
}

// close lets the clean-up finish until ctx ends, then ends it, and returns how
// many values it could not see to.
func (c *cleanup) close(ctx context.Context) int {
	c.mu.Lock()
	c.closed = true
	running := c.running
	c.mu.Unlock()
	if running != nil {
		select {
		case <-running:
		case <-ctx.Done():
			c.abort()
			<-running
		}
	}
	c.abort()
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.values)
}
