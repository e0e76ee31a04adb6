package leasehold

import (
	"slices"
	"sync"
	"time"
)

// lines are those of one Client.
type lines struct {
	door  *door
	inbox *inbox
	clean *cleanup

	mu    sync.Mutex
	byKey map[string]*line // those with a waiter or a lease
	spare *line            // the last one that had neither, for the next; nil without
}

// A line is the waiters of one key in one Client, first come first served, and the
// lease that this Client has on the key. Only its first waiter, the head, talks to
// Redis, with one value that has one place in the queue; the others wait for their
// turn.
//
//	     an Acquire joins        busy           held
//	absent ──────────────► asking ───► queued ──────► holding ── released, lost ──► absent
//	                         │            │               │
//	                         └─ held ─────┼───────────────┘ and the next waiter begins
//	                                      │                 to ask, with a new value
//	                                      └─ the head gives up: the next one is queued
//	                                         at its place, or leave takes it out
//
// What the head found out is handed on with its turn: where it had just polled in
// vain the next one waits on, and where it gave up over an answer the next one polls
// at once, because the answer may have been that the key is ours.
type line struct {
	key string // with its prefix

	// Guarded by the mutex of lines.
	waiters   []*waiter
	lease     *lease       // until a release of it has ended, or its loss
	holder    string       // its metadata
	asked     *acquisition // the head's value; nil while it has none
	said      error        // Redis's last word to the line, *BusyError or another; nil before the first
	saidAt    instant
	open      int32 // how many commands of the value were unanswered then
	listening bool  // the inbox is open for this line

	wake chan struct{} // holds one: poll now

	turn turn
}

// A turn is what a head knows, and hands on to the next one. It is the head's own.
type turn struct {
	place    int64     // of the head before, which gave up; 0 where there is none
	pollAt   time.Time // when to poll next
	answered bool      // Redis has answered the line
	failures int       // since it last did
}

func newLines(d *door, in *inbox, clean *cleanup) *lines {
	ls := &lines{door: d, inbox: in, clean: clean, byKey: make(map[string]*line)}
	in.heard, in.opened = ls.hear, ls.wakeAll
	return ls
}

// lineLocked returns the line of a key, which it makes where there is none.
func (ls *lines) lineLocked(key string) *line {
	li := ls.byKey[key]
	if li == nil {
		if li = ls.spare; li == nil {
			li = &line{wake: make(chan struct{}, 1)}
		}
		ls.spare = nil
		li.key = key
		ls.byKey[key] = li
	}
	return li
}

// dropLocked forgets a line that has neither a waiter nor a lease, and closes the
// inbox for one without a waiter.
func (ls *lines) dropLocked(li *line) {
	if len(li.waiters) > 0 {
		return
	}
	li.said, li.turn = nil, turn{}
	if li.listening {
		li.listening = false
		ls.inbox.leave()
	}
	if li.lease == nil {
		delete(ls.byKey, li.key)
		ls.spare = li // a wake-up that still comes for it makes one poll too many
	}
}

// hold notes the lease that this Client has on a key, before it starts.
func (ls *lines) hold(l *Lock, le *lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	li := ls.lineLocked(l.names.name())
	li.lease, li.holder = le, l.settings.metadata
}

// forget ends what hold began.
func (ls *lines) forget(key string, le *lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if li := ls.byKey[key]; li != nil && li.lease == le {
		li.lease = nil
		ls.dropLocked(li)
	}
}

// busy returns what is known without asking Redis: that this Client has the key, or
// that it waits for it, so that others come first. It is nil where neither is so.
func (ls *lines) busy(l *Lock) *BusyError {
	ls.mu.Lock()
	li := ls.byKey[l.names.name()]
	if li == nil {
		ls.mu.Unlock()
		return nil
	}
	le, holder := li.lease, li.holder
	said, _ := li.said.(*BusyError)
	since := li.saidAt
	ls.mu.Unlock()

	at := now()
	// Without the mutex, since a lease that finds itself lost says so to others.
	if le != nil && le.alive(at) {
		return &BusyError{Key: l.key, Remaining: le.remaining(at) + drift(le.ttl), Holder: holder}
	}
	if said == nil {
		return nil
	}
	busy := &BusyError{Key: l.key, Holder: said.Holder}
	if said.Remaining > 0 { // it has a TTL
		busy.Remaining = max(time.Millisecond, since.add(said.Remaining).left(at))
	}
	return busy
}

// hear takes a wake-up. One for the value that its line asks with has it poll; a
// poll under way may have come before the hand-over, so that it polls again. One for
// the lease that it has is old: poll and wake-up crossed. One for any other value
// granted the key to nobody: to a head that gave up, whose leave is on its way, or
// by a queue that came back with a failover. Leave frees it.
func (ls *lines) hear(message string) {
	key, value, ok := wakeUp(message)
	if !ok {
		return
	}
	ls.mu.Lock()
	li := ls.byKey[key]
	asks := li != nil && li.asked != nil && li.asked.value == value
	has := li != nil && li.lease != nil && li.lease.token == value[:tokenLength]
	ls.mu.Unlock()
	switch {
	case asks: // [model: wakeUp.poll]
		li.wakeUp()
	case has: // [model: wakeUp.ignore]
	default: // [model: wakeUp.leave]
		a := &acquisition{door: ls.door, clean: ls.clean, name: key, names: newNames(key), value: value, boxed: value}
		a.queued.Store(true)
		a.settle()
	}
}

// wakeAll has all lines poll, because wake-ups may have been lost.
func (ls *lines) wakeAll() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, li := range ls.byKey {
		if li.asked != nil {
			li.wakeUp()
		}
	}
}

func (li *line) wakeUp() {
	select {
	case li.wake <- struct{}{}:
	default: // it will poll, and has not begun to
	}
}

// join puts a waiter at the end of its line.
func (w *waiter) join() {
	ls := w.lock.client.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.line = ls.lineLocked(w.lock.names.name())
	w.line.waiters = append(w.line.waiters, w)
	if w.line.waiters[0] != w {
		w.first = make(chan struct{})
	}
}

// leave ends what an Acquire began with the lease that it got, or nil: it leaves its
// line, and the next waiter has its turn.
//
// Where the head gives up while the key is being handed to it, either the next
// waiter has the same value and finds it held with its poll; or leave is sent, and
// hands the key on if it comes after the hand-over, or takes the place out of the
// queue if it comes before.
func (w *waiter) leave(le *lease) {
	ls, left := w.lock.client.lines, w.asked
	if li := w.line; li != nil {
		ls.mu.Lock()
		i := slices.Index(li.waiters, w)
		li.waiters = slices.Delete(li.waiters, i, i+1)
		if i == 0 {
			left = li.handOnLocked(le) // also where its ctx ended before it had its turn
		}
		ls.dropLocked(li)
		ls.mu.Unlock()
	}
	if left != nil && le == nil { // [model: acquire.giveUp]
		left.settle()
	}
}

// handOnLocked gives the next waiter its turn, and returns the value that nobody goes
// on with. A next one whose value would be another, or live for another time, makes
// its own and is queued at the same place.
func (li *line) handOnLocked(le *lease) *acquisition {
	a := li.asked
	var next *waiter
	if len(li.waiters) > 0 {
		next = li.waiters[0]
		defer close(next.first)
	}
	switch {
	case le != nil:
		li.turn.place, li.said = 0, nil
	case a == nil:
	case next != nil && next.lock.agrees(a):
		return nil
	default:
		li.turn.place = a.place
	}
	li.asked, li.open, li.turn.pollAt = nil, 0, time.Time{}
	return a
}

// agrees tells whether an acquisition is as this Lock would make it.
func (l *Lock) agrees(a *acquisition) bool {
	return l.settings.ttl == a.ttl && a.value[tokenLength:] == l.metadata()
}
