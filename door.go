package leasehold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxTries is how often an acquire or a release is sent when its connection fails.
const maxTries = 3

// maxOut is how many calls of one kind may be inside go-redis for one acquisition
// when another is wanted by a loop that comes again by itself: a renewal, a poll, a
// leave. A call to a hung server stays in there until the client's ReadTimeout and
// keeps a connection busy, which the user's own commands would miss. Each kind
// counts for itself, so that clean-up is not kept out by what it cleans up after.
const maxOut = 3

// errCrowded is the outcome of a call that was not sent because of maxOut.
var errCrowded = errors.New("earlier calls are still without an answer")

// The door is the one place through which scripts go to Redis. go-redis by itself
// waits for a reply past its ctx's deadline, always ignores a cancel while it
// does, and repeats commands without telling. The door answers at the reply or at
// the ctx's end, sends each command once, and repeats only where it is told how
// often, so that it knows what may still be under way.
type door struct {
	rdb redis.UniversalClient

	// out counts the calls that are inside go-redis, among them those that were
	// left behind. The client's own timeouts end them.
	out atomic.Int64
}

// A command is one script with its arguments, and how to send it.
type command struct {
	script *script
	args   []any         // of EVALSHA
	out    *atomic.Int32 // counts the acquisition's calls of this kind inside go-redis
	open   *atomic.Int32 // counts the tries that may take the key, nil where they cannot
	tries  int           // 1 where the caller comes again by itself
	most   time.Duration // that one try may take
	within time.Duration // that all tries may take, 0 where only ctx bounds them
	grace  time.Duration // that an answer may still take when ctx has ended
}

// calls counts what one acquisition has under way.
type calls struct {
	asking, renewing, leaving atomic.Int32 // inside go-redis

	// open is how many of its commands could still take the key, or may have: those
	// without an answer, and those that Redis refused perhaps halfway.
	open atomic.Int32
}

// An answer is what Redis said to a command.
type answer struct {
	reply  any
	sentAt instant // when the try that was answered was handed to go-redis
	// earlierAt is when the first of the tries before it was, that may have been
	// carried out although it was not answered; zero where there is none.
	earlierAt instant
}

// call sends a command and returns Redis's answer to it. It returns at the answer
// or at ctx's end, whichever is first; a call that hangs is left behind. The error
// is Redis's own, the connection's of the last try, or ctx's cause; with an
// error, earlierAt covers all tries.
func (d *door) call(ctx context.Context, c command) (answer, error) {
	if c.tries == 1 && c.out.Load() >= maxOut {
		return answer{}, errCrowded
	}
	until, bounded := ctx.Deadline()
	if c.within > 0 {
		until, bounded = time.Now().Add(c.within), true
	}
	var err error
	var flights [maxTries]*flight
	for n := range c.tries {
		if ctx.Err() != nil {
			break
		}
		left := time.Duration(-1)
		if bounded {
			left = time.Until(until)
		}
		f := d.try(ctx, c, tryBound(c.most, left, c.tries)) // after the first [model: acquire.again, release.again]
		flights[n] = f
		if f.answered {
			if f.err == nil || isReply(f.err) {
				return answer{f.reply, f.sentAt, earliest(flights[:n], (*flight).wasWritten)}, f.err
			}
			err = f.err
		} else if ctx.Err() == nil {
			err = errUnanswered
		}
		if errors.Is(err, redis.ErrClosed) {
			break
		}
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		err = context.Cause(ctx)
	}
	return answer{earlierAt: earliest(flights[:], (*flight).mayBeWritten)}, err
}

// errUnanswered is the outcome of a try that Redis did not answer in time.
var errUnanswered = fmt.Errorf("no answer from Redis: %w", os.ErrDeadlineExceeded)

// try sends a command once and waits for its answer until its bound or ctx's end.
func (d *door) try(ctx context.Context, c command, bound time.Duration) *flight {
	f := &flight{Context: ctx, command: c, sentAt: now(), done: make(chan struct{}), left: make(chan struct{})}
	timer := time.AfterFunc(bound, f.leaveBehind)
	defer timer.Stop()
	d.out.Add(1)
	c.out.Add(1)
	if c.open != nil {
		c.open.Add(1)
	}
	// Owned by the door, which counts it in out; ends with the reply, or where
	// Redis hangs with the client's timeouts; this try waits for it, up to its bound.
	go d.fly(f)

	select {
	case <-f.done:
	case <-f.left:
	case <-ctx.Done():
		if c.grace > 0 {
			select {
			case <-f.done:
			case <-time.After(c.grace):
			}
		}
		f.leaveBehind()
	}
	select {
	case <-f.done:
		f.answered = true
	default:
	}
	if f.answered && f.err == nil && c.open != nil {
		c.open.Add(-1)
	}
	return f
}

// fly hands a flight to go-redis and settles what is known when it comes back,
// whether or not somebody still waits for it. The script's text follows where the
// server does not know its hash.
func (d *door) fly(f *flight) {
	f.Cmd = redis.NewCmd(f, f.args...)
	err := d.rdb.Process(f, once{f})
	if err != nil && hasPrefix(err, "NOSCRIPT") && f.Err() == nil {
		f.Cmd = redis.NewCmd(f, append([]any{"eval", f.script.text}, f.args[2:]...)...)
		err = d.rdb.Process(f, once{f})
	}
	if f.err = err; err == nil {
		f.reply = f.Cmd.Val()
	}
	if err != nil && hasPrefix(err, "NOSCRIPT", "MOVED", "ASK") {
		f.written.Store(false) // sent, but carried out nowhere
	}
	if f.open != nil && !f.written.Load() {
		f.open.Add(-1)
	}
	f.out.Add(-1)
	d.out.Add(-1)
	close(f.done)
}

// A flight is one try of a command, and the context that go-redis gets for it: the
// call's, which ends when the try is left behind, so that what still waits for a
// connection then is never sent.
type flight struct {
	context.Context
	*redis.Cmd
	command
	sentAt instant

	// written tells whether go-redis has taken the arguments, without which there
	// is nothing to write. It may be true for a command that was not sent (a hook
	// looked at it), never false for one that was.
	written atomic.Bool

	behind atomic.Bool   // left is closed
	left   chan struct{} // closed when the try is left behind
	done   chan struct{} // closed after reply and err are set
	reply  any
	err    error

	answered bool // try saw done closed, so that reply and err may be read
}

func (f *flight) leaveBehind() {
	if f.behind.CompareAndSwap(false, true) {
		close(f.left)
	}
}

// Done returns the channel that closes when the try is left behind.
func (f *flight) Done() <-chan struct{} { return f.left }

// Err says why the try was left behind. go-redis answers with it where the command
// was still waiting for a connection; it is not the caller's ctx that ended then.
func (f *flight) Err() error {
	if !f.behind.Load() {
		return nil
	}
	if err := f.Context.Err(); err != nil {
		return err
	}
	return errUnanswered
}

// once is a flight as a redis.Cmder.
type once struct{ *flight }

func (o once) Err() error     { return o.flight.Cmd.Err() }
func (o once) String() string { return o.flight.Cmd.String() }

// NoRetry tells go-redis to send the command once.
func (o once) NoRetry() bool { return true }

// Args returns the arguments, and notes that go-redis has seen them.
func (o once) Args() []any {
	o.written.Store(true)
	return o.Cmd.Args()
}

func (f *flight) wasWritten() bool { return f.written.Load() }

// mayBeWritten tells whether the command was or may yet be written: one that is
// still waiting for a connection when its ctx ends can win one in that moment.
func (f *flight) mayBeWritten() bool {
	select {
	case <-f.done:
		return f.written.Load()
	default:
		return true
	}
}

// earliest returns when the first flight of those was sent of which may is true.
func earliest(flights []*flight, may func(*flight) bool) instant {
	for _, f := range flights {
		if f != nil && may(f) {
			return f.sentAt
		}
	}
	return instant{}
}
