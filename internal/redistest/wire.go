package redistest

import (
	"context"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Fate says what becomes of one request, and with it of its connection.
type Fate int

const (
	// Pass delivers the request and its reply.
	Pass Fate = iota

	// LoseReply delivers the request, waits until the server has answered all of it,
	// discards the reply and closes the connection: the client sees EOF for what was
	// carried out.
	LoseReply

	// SwallowReply delivers the request and discards the reply. The connection stays
	// open and says nothing to the client any more, not even that it was closed.
	SwallowReply

	// LoseRequest closes the connection in place of delivering the request.
	LoseRequest

	// HoldRequest keeps the request back until Deliver, behind which later ones of
	// its connection have to wait, and discards the reply. Meanwhile and afterwards
	// the connection is as silent as with SwallowReply. The request outlives its
	// client's closing of the connection, and Cut and Down too.
	HoldRequest
)

// A Wire stands between clients and their server and loses, holds back or cuts what
// passes. It works in a bubble and on TCP alike, and is safe for concurrent use.
//
// A client cannot see that an idle connection has been closed before it uses it:
// go-redis looks at the sockets of its pool, and a Wire's connection has none.
type Wire struct {
	mu     sync.Mutex
	decide func(request string) Fate
	down   bool
	links  map[*link]struct{}
	held   []heldRequest // oldest first

	ends sync.WaitGroup // the goroutines of all links
}

type heldRequest struct {
	request
	link *link
}

// NewWire returns a Wire that passes everything.
func NewWire() *Wire {
	return &Wire{links: map[*link]struct{}{}}
}

// Attach leads the connections that o makes through the Wire. It is meant as an
// edit for Client; several clients may share a Wire.
func (w *Wire) Attach(o *redis.Options) {
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(o)
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if w.isDown() {
			return nil, errRefused
		}
		far, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		near, end := net.Pipe()
		if !w.add(&link{wire: w, near: end, far: far}) {
			far.Close()
			return nil, errRefused
		}
		return &conn{Conn: near}, nil
	}
}

// Decide has f asked for the fate of each request from now on: of one command or
// one pipeline, in the bytes that the client wrote. Nil passes all. Not asked for,
// and passed, are requests that begin with HELLO, AUTH, SELECT, READONLY, CLIENT or
// PING, which go-redis sends by itself. f must be safe for concurrent use; blocking
// in it delays the request, and nothing else but its connection.
func (w *Wire) Decide(f func(request string) Fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decide = f
}

// Deliver gives all held requests to the server, in the order in which they were
// held, and returns when it has answered them or closed their connections. So the
// server must not be paused. Calls of Deliver must not overlap.
func (w *Wire) Deliver() {
	for {
		w.mu.Lock()
		if len(w.held) == 0 {
			w.mu.Unlock()
			return
		}
		h := w.held[0]
		w.held = w.held[1:]
		answered := h.link.expectLocked(h.commands)
		w.mu.Unlock()

		h.link.send(h.request)
		<-answered
		h.link.delivered()
	}
}

// Cut closes all connections; new ones may be dialled.
func (w *Wire) Cut() {
	w.closeLinks(func(*link) bool { return true })
}

// Down cuts, and has dialling fail with ECONNREFUSED until Up.
func (w *Wire) Down() {
	w.mu.Lock()
	w.down = true
	w.mu.Unlock()
	w.Cut()
}

// Up ends Down.
func (w *Wire) Up() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

// Blackhole has the connections that there are now deliver nothing any more in
// either direction. Not even the client's closing one gets through: to the server
// it is open, and a subscription on it alive, until Heal. New connections pass.
func (w *Wire) Blackhole() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.silent, l.blackholed = true, true
	}
}

// Heal closes the connections that Blackhole left dead, at both ends.
func (w *Wire) Heal() {
	w.closeLinks(func(l *link) bool { return l.blackholed })
}

// Close loses what is held, closes all connections, refuses new ones for good, and
// returns when the Wire does nothing any more. Whoever wants to be sure that no
// Decide is called after the test's end calls it there; in a bubble there is no
// need, because everything ends with the client and the server.
func (w *Wire) Close() {
	w.mu.Lock()
	w.held = nil
	for l := range w.links {
		l.holding = 0
	}
	w.mu.Unlock()
	w.Down()
	w.ends.Wait()
}

func (w *Wire) isDown() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down
}

// add starts a link, unless the Wire has gone down since it was dialled.
func (w *Wire) add(l *link) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return false
	}
	w.links[l] = struct{}{}
	// Owned by the link; ends when the client's end is closed; Close waits for it.
	w.ends.Go(l.carryRequests)
	// Owned by the link; ends when the server's end is closed; Close waits for it.
	w.ends.Go(l.carryReplies)
	return true
}

// closeLinks closes the links of which is true; the server's end of one that
// still holds a request stays open for it.
func (w *Wire) closeLinks(which func(*link) bool) {
	w.mu.Lock()
	var ends []net.Conn
	for l := range w.links {
		if !which(l) {
			continue
		}
		l.blackholed = false
		ends = append(ends, l.near)
		if l.holding == 0 {
			ends = append(ends, l.far)
		}
	}
	w.mu.Unlock()
	for _, end := range ends {
		end.Close()
	}
}

// fate returns what Decide's function says, called without a lock.
func (w *Wire) fate(q request) Fate {
	w.mu.Lock()
	decide := w.decide
	w.mu.Unlock()
	if decide == nil || isHandshake(q.firstCommand()) {
		return Pass
	}
	return decide(q.text)
}
