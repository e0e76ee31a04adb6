package redistest

import (
	"context"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// A Bubble is a miniredis that lives wholly inside a synctest bubble. Its clock is
// the bubble's: a key is gone in the very instant its TTL is over, and TIME tells
// fake time, as do PEXPIREAT and the miniredis methods that look into the keys.
//
// ShiftClock makes TIME run beside the bubble's clock. Miniredis' own SetTime makes
// it stand still at an instant, and every TTL with it, until SetTime is called
// again or ShiftClock sets it running.
//
// Connections are pipes and hold nothing in between: a subscriber that does not
// read stops the PUBLISH that has a message for it, and with it the server. Tests
// with a Bubble must not run in parallel with others: see dropPooledTimers.
type Bubble struct {
	*miniredis.Miniredis

	mu        sync.Mutex
	resumed   chan struct{} // closed by Resume; nil while not paused
	callbacks []func(cmd string, args []string)
	refusal   string                    // of SetError
	clients   map[*server.Peer]struct{} // those at the end of a connection

	clock sync.Mutex // held over a change of miniredis' clock, so that none is seen half done
	shift time.Duration

	door   sync.Mutex // held over a dial, so that none comes after Close
	closed bool
}

var _ Redis = (*Bubble)(nil)

// settle is how long the goroutines that go-redis has left may take to end, in
// fake time: a read that hangs takes its ReadTimeout of 5 s, the tries at dialling
// and the pauses between retries less. Time stands still in a bubble once its test
// has returned, and they would be taken for a deadlock.
const settle = 10 * time.Second

// NewBubble starts a server that ends with the test. It must be called inside
// synctest.Test.
func NewBubble(t testing.TB) *Bubble {
	t.Helper()
	dropPooledTimers()
	b := &Bubble{Miniredis: miniredis.NewMiniRedis(), clients: map[*server.Peer]struct{}{}}
	b.ClockTTL(true)
	// Dial is what starts miniredis without a listener. A goroutine in Accept is
	// never durably blocked and would stop the bubble's clock.
	c, err := b.Dial()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b.Server().SetPreHook(b.before)
	t.Cleanup(func() {
		b.Resume(t)
		b.Close()
		time.Sleep(settle)
		dropPooledTimers()
	})
	return b
}

// dropPooledTimers empties every sync.Pool, which takes two collections. go-redis
// keeps in one, for all clients of the process, the timers of callers that waited
// for a connection. One of a bubble is fatal outside of it ("reset of synctest
// timer from outside bubble"), and one from outside would have a bubble wait in
// real time.
func dropPooledTimers() {
	runtime.GC()
	runtime.GC()
}

// Addr is an IP address, because go-redis would ask the resolver for a name.
func (b *Bubble) Addr() string { return "127.0.0.1:6379" }

// Client returns a client whose Dialer, already set when edit is called, leads into
// the bubble.
func (b *Bubble) Client(t testing.TB, edit ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return newClient(t, &redis.Options{Addr: b.Addr(), Dialer: b.dial}, edit)
}

func (b *Bubble) dial(context.Context, string, string) (net.Conn, error) {
	b.door.Lock()
	defer b.door.Unlock()
	if b.closed {
		return nil, errRefused
	}
	c, err := b.Dial()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// Close ends the server for good: connections are closed, and new ones refused
// instead of reviving it, as miniredis would.
func (b *Bubble) Close() {
	b.door.Lock()
	b.closed = true
	b.door.Unlock()
	b.Miniredis.Close()
}

// Pause hangs the server. Looking into its keys by the methods of Miniredis works.
func (b *Bubble) Pause(testing.TB) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.resumed == nil {
		b.resumed = make(chan struct{})
	}
}

// Resume carries out what was sent since Pause.
func (b *Bubble) Resume(testing.TB) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.resumed != nil {
		close(b.resumed)
		b.resumed = nil
	}
}

// OnCommand has f called before each command of a client is carried out, its name
// in capitals; what a script calls is not told. f runs on the connection's
// goroutine, so that blocking in it delays that connection, and it may call Pause:
// the command hangs then. It must be safe for concurrent use.
func (b *Bubble) OnCommand(f func(cmd string, args []string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.callbacks = append(b.callbacks, f)
}

// SetError makes every command fail with msg, or none if msg is empty. A connection
// can still be set up, as with a real server that says LOADING.
func (b *Bubble) SetError(msg string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refusal = msg
}

// ShiftClock makes the server's clock tell the bubble's time plus d, and run on
// from there. TTLs go on as they were, where those of a real server would end
// earlier or later by the step. While d is not zero, the methods of Miniredis see
// the keys as of the last command.
func (b *Bubble) ShiftClock(d time.Duration) {
	b.clock.Lock()
	defer b.clock.Unlock()
	b.runClockLocked()
	b.DB(0) // takes off all TTLs what has passed until now
	// Off while the clock jumps, so that the jump is not taken off too.
	b.ClockTTL(false)
	if b.shift = d; d == 0 {
		b.SetTime(time.Time{})
	}
	b.runClockLocked()
	b.ClockTTL(true)
}

// runClockLocked brings a shifted clock, which stands still by itself, up to now.
func (b *Bubble) runClockLocked() {
	if b.shift != 0 {
		b.SetTime(time.Now().Add(b.shift))
	}
}

// before is called before each command and answers true if it has dealt with it.
func (b *Bubble) before(peer *server.Peer, cmd string, args ...string) bool {
	// A script runs with miniredis locked: its calls must not wait, nor set the clock.
	if !b.fromClient(peer) {
		return false
	}
	b.awaitResume()
	b.mu.Lock()
	callbacks, refusal := b.callbacks, b.refusal
	b.mu.Unlock()
	for _, f := range callbacks {
		f(cmd, args)
	}
	b.awaitResume()

	b.clock.Lock()
	b.runClockLocked()
	b.clock.Unlock()
	if refusal != "" && !isHandshake(cmd) {
		peer.WriteError(refusal)
		return true
	}
	return false
}

// fromClient tells the peer of a connection from the one that miniredis makes up
// for a script. The latter has a context from the start; a connection gets its own
// with its first command.
func (b *Bubble) fromClient(peer *server.Peer) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.clients[peer]
	if !known && peer.Ctx == nil {
		b.clients[peer] = struct{}{}
		peer.OnDisconnect(func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.clients, peer)
		})
		known = true
	}
	return known
}

func (b *Bubble) awaitResume() {
	b.mu.Lock()
	resumed := b.resumed
	b.mu.Unlock()
	if resumed != nil {
		<-resumed
	}
}
