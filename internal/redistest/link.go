package redistest

import (
	"bufio"
	"net"
)

// A link is one connection through a Wire: near is the Wire's end of a pipe to the
// client, far a connection to the server. One goroutine carries requests and one
// replies, each reading on whatever becomes of what it read: neither a net.Pipe nor
// miniredis has a buffer that could take what nobody reads.
//
// A Wire's mutex guards the fields below. Errors of writing and closing need no
// look: the goroutine that reads from that end sees them too.
type link struct {
	wire      *Wire
	near, far net.Conn

	silent     bool // nothing goes to the client any more
	blackholed bool // nor to the server, not even the client's closing
	holding    int  // requests held, which need far even if the client has gone

	due      int           // replies until the request in hand is answered
	answered chan struct{} // closed when there are none due, or far has ended

	nearEnded, farEnded bool
}

// carryRequests carries what the client sends until its end is closed, or a fate
// closes it.
func (l *link) carryRequests() {
	r := bufio.NewReaderSize(l.near, 64<<10) // takes any one write of go-redis whole
	for {
		q, err := readRequest(r)
		if err != nil || !l.carry(q) {
			break
		}
	}

	w := l.wire
	w.mu.Lock()
	l.nearEnded = true
	l.forgetLocked()
	keep := l.holding > 0 || l.blackholed
	w.mu.Unlock()
	l.near.Close()
	if !keep {
		l.far.Close()
	}
}

// carry does with a request what its fate says, and answers whether the connection
// goes on.
func (l *link) carry(q request) bool {
	w := l.wire
	fate := w.fate(q)

	w.mu.Lock()
	if l.blackholed {
		w.mu.Unlock()
		return true
	}
	if l.holding > 0 {
		fate = HoldRequest
	}
	if fate != Pass {
		l.silent = true
	}
	var answered chan struct{}
	switch fate {
	case LoseReply:
		answered = l.expectLocked(q.commands)
	case HoldRequest:
		l.holding++
		w.held = append(w.held, heldRequest{q, l})
	}
	w.mu.Unlock()

	switch fate {
	case Pass, SwallowReply:
		l.send(q)
	case LoseReply:
		l.send(q)
		<-answered
		return false
	case LoseRequest:
		return false
	}
	return true
}

// carryReplies carries what the server sends until its end is closed.
func (l *link) carryReplies() {
	r := bufio.NewReader(l.far)
	for {
		frame, err := readFrame(r)
		if err != nil {
			break
		}
		if l.reaches(frame) {
			l.near.Write(frame)
		}
	}

	w := l.wire
	w.mu.Lock()
	l.farEnded = true
	l.settleLocked()
	l.forgetLocked()
	silent := l.silent
	w.mu.Unlock()
	l.far.Close()
	if !silent {
		l.near.Close()
	}
}

// reaches counts a reply, and answers whether the client is to have it.
func (l *link) reaches(frame []byte) bool {
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	if l.due > 0 && !isMessage(frame) {
		if l.due--; l.due == 0 {
			l.settleLocked()
		}
	}
	return !l.silent
}

// expectLocked returns a channel that tells when so many commands, sent next, have
// been answered, or never will be.
func (l *link) expectLocked(commands int) chan struct{} {
	answered := make(chan struct{})
	l.due, l.answered = commands, answered
	if l.farEnded {
		l.settleLocked()
	}
	return answered
}

func (l *link) settleLocked() {
	if l.answered != nil {
		close(l.answered)
		l.due, l.answered = 0, nil
	}
}

// delivered counts off a held request, the last of which lets go of the server's
// end if the client has let go of its own.
func (l *link) delivered() {
	l.wire.mu.Lock()
	l.holding = max(0, l.holding-1) // Close may have dropped them all
	done := l.holding == 0 && l.nearEnded && !l.blackholed
	l.wire.mu.Unlock()
	if done {
		l.far.Close()
	}
}

func (l *link) send(q request) { l.far.Write([]byte(q.text)) }

// forgetLocked takes a link that has ended at both ends off the Wire.
func (l *link) forgetLocked() {
	if l.nearEnded && l.farEnded {
		delete(l.wire.links, l)
	}
}
