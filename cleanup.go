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
// key, or a place in the queue, behind: it sends leave for each value until one is
// confirmed. That may be long after, when Redis hangs, and it may overtake the
// acquire it cleans up after, whose value is dead then.
type cleanup struct {
	log *slog.Logger

	mu      sync.Mutex
	values  []*givenUp    // oldest first
	running chan struct{} // closed when the goroutine ends; nil while there is none
	closed  bool          // nothing more is taken in

	more   chan struct{}   // holds one: a value was added, or is done
	stop   context.Context // ended by abort: nothing more is sent
	abort  context.CancelFunc
	places chan struct{} // taken by the tries under way

	nextTurn int // where the next round begins; the goroutine's own
}

// A givenUp is an acquisition in clean-up.
type givenUp struct {
	*acquisition
	until instant // when it is given up for good

	// Guarded by the clean-up's mutex.
	dueAt  instant // when it is tried next
	trying bool
	done   bool

	told bool // that it was refused was logged; the try's own
}

func newCleanup(log *slog.Logger) *cleanup {
	stop, abort := context.WithCancel(context.Background())
	return &cleanup{
		log: log, more: make(chan struct{}, 1), stop: stop, abort: abort, places: make(chan struct{}, cleanupAtOnce),
	}
}

// add takes an acquisition in and sees that somebody works on it at once. The oldest
// has to go where there are too many.
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
	c.goOn()
	if c.running == nil {
		c.running = make(chan struct{})
		// Owned by the clean-up; ends when nothing is left to clean up or at abort;
		// close waits for it.
		go c.run(c.running)
	}
}

func (c *cleanup) goOn() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// run works in rounds until nothing is left. One begins when a value was added, too,
// since what a line has given up must not keep the others waiting.
func (c *cleanup) run(ended chan struct{}) {
	defer close(ended)
	var tries sync.WaitGroup
	defer tries.Wait()
	rounds := time.NewTicker(cleanupEvery)
	defer rounds.Stop()
	for c.moreToDo() {
		c.round(&tries)
		select {
		case <-rounds.C:
		case <-c.more:
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

// round begins to try each value that is due, some at a time, for as long as a round
// may take. The next round begins where this one had to stop, so that the values of a
// node that hangs do not keep out the others.
func (c *cleanup) round(tries *sync.WaitGroup) {
	ctx, cancel := context.WithTimeout(c.stop, cleanupEvery)
	defer cancel()
	c.mu.Lock()
	values := c.values
	c.mu.Unlock()
	for range values {
		v := values[c.nextTurn%len(values)]
		c.nextTurn++
		if !c.begin(v) {
			continue
		}
		select {
		case c.places <- struct{}{}:
		case <-ctx.Done():
			c.end(v, false)
			return
		}
		// Owned by the goroutine of the clean-up, which waits for it before it ends;
		// ends with one try.
		tries.Go(func() {
			done := c.try(c.stop, v)
			<-c.places
			c.end(v, done)
		})
	}
}

// begin tells whether a value is due, and is tried by the caller if so.
func (c *cleanup) begin(v *givenUp) bool {
	at := now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.trying || v.done || v.dueAt.left(at) > 0 {
		return false
	}
	v.trying = true
	v.dueAt = at.add(cleanupEvery / 2) // with the next tick, and not with the next addition
	return true
}

func (c *cleanup) end(v *givenUp, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v.trying, v.done = false, done
	if done {
		c.goOn()
	}
}

// try sends one leave, unless what was unanswered has turned out harmless, and tells
// whether no other is needed.
func (c *cleanup) try(ctx context.Context, v *givenUp) bool {
	if v.calls.open.Load() <= 0 && !v.queued.Load() {
		return true
	}
	err := v.leave(ctx)
	switch {
	case err == nil:
		return true
	case isRefusal(err), v.until.left(now()) == 0:
		c.log.Warn("leasehold: clean-up after an acquire that was given up has failed; its TTL ends what it left",
			"key", v.name, "token", v.token()[:8], "error", err)
		return true
	case isReply(err) && !v.told:
		v.told = true
		c.log.Warn("leasehold: clean-up was refused and goes on", "key", v.name, "error", err)
	}
	return false
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
