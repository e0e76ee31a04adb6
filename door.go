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

// maxOut is how many calls of one acquisition may be inside go-redis when another
// is wanted by a loop that comes again by itself: a renewal, a poll, a leave. A
// call to a hung server stays in there until the client's ReadTimeout and keeps a
// connection busy, which the user's own commands would miss.
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
	args   []any // of EVALSHA
	calls  *calls
	open   *atomic.Int32 // counts the tries that may take the key, nil where they cannot
	tries  int           // 1 where the caller comes again by itself
	most   time.Duration // that one try may take
}

// calls counts what one acquisition has under way.
type calls struct {
	// out is how many of its calls are inside go-redis.
	out atomic.Int32
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
	if c.tries == 1 && c.calls.out.Load() >= maxOut {
		return answer{}, errCrowded
	}
	var err error
	var flights [maxTries]*flight
	for n := range c.tries {
		if ctx.Err() != nil {
			break
		}
		f := d.try(ctx, &c)
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
func (d *door) try(ctx context.Context, c *command) *flight {
	left := time.Duration(-1)
	deadline, bounded := ctx.Deadline()
	if bounded {
		left = time.Until(deadline)
	}
	bound := time.NewTimer(tryBound(c.most, left, c.tries))
	defer bound.Stop()

	f := &flight{Context: ctx, c: c, sentAt: now(), done: make(chan struct{}), left: make(chan struct{})}
	d.out.Add(1)
	c.calls.out.Add(1)
	if c.open != nil {
		c.open.Add(1)
	}
	// Owned by the door, which counts it in out; ends with the reply, or where
	// Redis hangs with the client's timeouts; this try waits for it, up to its bound.
	go d.fly(f)

	select {
	case <-f.done:
		f.answered = true
	case <-bound.C:
	case <-ctx.Done():
	}
	if !f.answered {
		close(f.left)
		select {
		case <-f.done:
			f.answered = true
		default:
		}
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
	c := f.c
	f.Cmd = redis.NewCmd(f, c.args...)
	err := d.rdb.Process(f, once{f})
	if err != nil && hasPrefix(err, "NOSCRIPT") && f.Err() == nil {
		args := append([]any{"eval", c.script.text}, c.args[2:]...)
		f.Cmd = redis.NewCmd(f, args...)
		err = d.rdb.Process(f, once{f})
	}
	if f.err = err; err == nil {
		f.reply = f.Cmd.Val()
	}
	if err != nil && hasPrefix(err, "NOSCRIPT", "MOVED", "ASK") {
		f.written.Store(false) // sent, but carried out nowhere
	}
	if c.open != nil && !f.written.Load() {
		c.open.Add(-1)
	}
	c.calls.out.Add(-1)
	d.out.Add(-1)
	close(f.done)
}

// A flight is one try of a command.
type flight struct {
	context.Context // the call's
	*redis.Cmd
	c      *command
	sentAt instant

	// written tells whether go-redis has taken the arguments, without which there
	// is nothing to write. It may be true for a command that was not sent (a hook
	// looked at it), never false for one that was.
	written atomic.Bool

	left  chan struct{} // closed when the try is left behind
	done  chan struct{} // closed after reply and err are set
	reply any
	err   error

	answered bool // try saw done closed, so that reply and err may be read
}

func (f *flight) Done() <-chan struct{} { return f.left }

func (f *flight) Err() error {
	select {
	case <-f.left:
		if err := f.Context.Err(); err != nil {
			return err
		}
		return context.DeadlineExceeded
	default:
		return nil
	}
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
