package leasehold

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The errors that callers test for with errors.Is. What a call returns wraps one
// of them, or Redis's or the network's own error, and names the key.
var (
	// ErrBusy says that somebody else holds the key; errors.As a *BusyError
	// tells for how long and who. TryAcquire returns it at once, Acquire when its
	// wait or ctx ended.
	ErrBusy = errors.New("leasehold: busy")

	// ErrLost says that a lease ended although its holder did not release it;
	// errors.As a *LostError tells why. It is the cause of the lease's context,
	// and Release's answer afterwards, once.
	ErrLost = errors.New("leasehold: lease lost")

	// ErrNotHeld is the answer to a Release without an acquisition, and to a
	// second one.
	ErrNotHeld = errors.New("leasehold: not held")

	// ErrInUse is the answer to an Acquire on a Lock that already holds or is
	// acquiring. Goroutines that compete for a key take a Lock each.
	ErrInUse = errors.New("leasehold: lock in use")

	// ErrInvalid says that a key or an option cannot work. Nothing was sent.
	ErrInvalid = errors.New("leasehold: invalid")

	// ErrClosed says that the Client was closed.
	ErrClosed = errors.New("leasehold: client closed")
)

// A BusyError says who holds a key and for how long. It is an ErrBusy.
type BusyError struct {
	// Key is the key as named to NewLock.
	Key string
	// Remaining is the time the holder's lease had left when Redis was last
	// asked; a holder that renews will have more. It is 0 for a key without a
	// TTL, which another program must have set.
	Remaining time.Duration
	// Holder is the holder's metadata, empty where it has none or is another
	// program.
	Holder string
}

// Error names the key, the holder's metadata, and the time left.
func (e *BusyError) Error() string {
	text := "leasehold: " + quote(e.Key) + " is busy"
	if e.Holder != "" {
		text += fmt.Sprintf(", held by %q", e.Holder)
	}
	if e.Remaining > 0 {
		return text + fmt.Sprintf(", its lease runs out in %v unless renewed", e.Remaining)
	}
	return text + ", without a TTL"
}

// Is makes a BusyError an ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// A LostError says that the lease on a key was lost, and why. It is an ErrLost.
type LostError struct {
	// Key is the key as named to NewLock.
	Key    string
	Reason LossReason
}

// Error names the key and the reason.
func (e *LostError) Error() string {
	return "leasehold: lease on " + quote(e.Key) + " lost: " + e.Reason.String()
}

// Is makes a LostError an ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// A LossReason says how a lease was lost.
type LossReason int

const (
	// LossExpired: the deadline passed before a renewal was confirmed. The key
	// may still be there for a moment; nobody else could take it before.
	LossExpired LossReason = iota + 1
	// LossTaken: Redis has a stranger's value in the key.
	LossTaken
	// LossGone: Redis no longer has the key: it was deleted, evicted or flushed,
	// or the server came back without it.
	LossGone
	// LossSuspended: the deadline passed while the machine was suspended, or the
	// wall clock was set forward past it.
	LossSuspended
)

// String returns the reason in a few words.
func (r LossReason) String() string {
	switch r {
	case LossExpired:
		return "it was not renewed before its deadline"
	case LossTaken:
		return "the key holds another value"
	case LossGone:
		return "the key is gone"
	case LossSuspended:
		return "the machine was suspended past its deadline, or its wall clock was set forward"
	}
	return fmt.Sprintf("LossReason(%d)", int(r))
}

// A callError is what one call answers: a text that names the operation and the
// key, and all that errors.Is and errors.As shall find in it.
type callError struct {
	text   string
	causes []error
}

func (e *callError) Error() string   { return e.text }
func (e *callError) Unwrap() []error { return e.causes }

// newCallError returns the error of operation op on a key, for the causes given.
// Each is told once: a cause that another one wraps is left out of the text.
func newCallError(op, key string, causes ...error) error {
	text := "leasehold: " + op
	if key != "" {
		text += " " + quote(key)
	}
	for i, cause := range causes {
		told := false
		for j, other := range causes {
			within := errors.Is(other, cause)
			told = told || within && (j < i || j > i && !errors.Is(cause, other))
		}
		if !told {
			text += ": " + strings.TrimPrefix(cause.Error(), "leasehold: ")
		}
	}
	return &callError{text: text, causes: causes}
}

// quote returns a key for an error's text, cut where it is too long to read.
func quote(key string) string {
	const most = 128
	if len(key) <= most {
		return fmt.Sprintf("%q", key)
	}
	return fmt.Sprintf("%q… (%d bytes)", key[:most], len(key))
}

// What Redis's refusals mean to us. These are the only places that look at the
// text of a reply.

// isReply tells whether err is Redis's own answer, and not the connection's.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// isConnection tells whether err is the connection's and not an answer, so that
// asking again may help.
func isConnection(err error) bool {
	return !isReply(err) && !errors.Is(err, errDead) && !errors.Is(err, errStrange) && !errors.Is(err, redis.ErrClosed)
}

// isPassing tells whether err is an answer of a Redis that is on its way back, so
// that a wait goes on over it.
func isPassing(err error) bool {
	return hasPrefix(err, "LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN")
}

// isRefusal tells whether err is an answer that asking again will not change.
// What Redis is only out of for now (memory, disk, connections, time for a script)
// is none.
func isRefusal(err error) bool {
	return hasPrefix(err, "NOAUTH", "WRONGPASS", "WRONGTYPE") || isForbidden(err)
}

// isForbidden tells whether err says that the user may not do what a script
// does. Inside a script Redis 7.0 says so without NOPERM.
func isForbidden(err error) bool {
	return hasPrefix(err, "NOPERM", "The user executing the script")
}

func hasPrefix(err error, prefixes ...string) bool {
	for _, prefix := range prefixes {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
