package leasehold

import (
	"fmt"
	"log/slog"
	"time"
)

// The limits of the options.
const (
	defaultTTL            = 10 * time.Second
	defaultReleaseTimeout = 3 * time.Second

	minTTL      = 10 * time.Millisecond
	maxTTL      = 30 * 24 * time.Hour
	shortTTL    = 100 * time.Millisecond // below it a Warn is logged
	maxMetadata = 1 << 10
)

// An Option changes how locks behave. Options given to New are the defaults of
// the Client's locks; one given to NewLock replaces the Client's of the same
// kind. A value that cannot work is reported by Acquire and TryAcquire as
// ErrInvalid, before any command is sent.
type Option interface {
	apply(s *settings)
}

type option func(*settings)

func (o option) apply(s *settings) { o(s) }

// settings is what the options of a Client or a Lock come to.
type settings struct {
	ttl            time.Duration
	renewEvery     time.Duration // 0: TTL/2
	renewal        renewalKind
	wait           time.Duration
	bounded        bool // WithWait was given
	metadata       string
	releaseTimeout time.Duration
	prefix         string
	log            *slog.Logger

	// What one list of options said, and what was wrong about the list itself.
	renewals   renewalKind // all kinds the list named
	clientOnly []string    // options the list named that are for New alone
	faults     []string
}

// renewalKind is what WithRenewEvery and WithoutRenewal choose between.
type renewalKind int

const (
	renewDefault renewalKind = 0
	renewEvery   renewalKind = 1
	renewNever   renewalKind = 2
)

func defaultSettings() settings {
	return settings{
		ttl:            defaultTTL,
		releaseTimeout: defaultReleaseTimeout,
		log:            slog.New(slog.DiscardHandler),
	}
}

// WithTTL sets the length of a lease: how long after its last renewal a dead
// holder's key is free. Whole milliseconds from 10 ms to 30 days; the default is
// 10 s. A second and more is sensible; below 100 ms a Warn is logged.
func WithTTL(d time.Duration) Option {
	return option(func(s *settings) { s.ttl = d })
}

// WithRenewEvery sets the interval between renewals: more than 0 and at most 2/3
// of the TTL. The default is half the TTL in force, and leaves time to try again
// when a renewal fails.
func WithRenewEvery(d time.Duration) Option {
	return option(func(s *settings) {
		s.renewEvery = d
		s.renewal = renewEvery
		s.renewals |= renewEvery
	})
}

// WithoutRenewal makes a fixed lease that ends at its deadline. By default a
// lease is renewed. It cannot be given together with WithRenewEvery.
func WithoutRenewal() Option {
	return option(func(s *settings) {
		s.renewal = renewNever
		s.renewals |= renewNever
	})
}

// WithWait bounds how long Acquire waits, apart from its ctx: more than 0. By
// default only the ctx bounds it. It bounds the wait and not the lease.
func WithWait(d time.Duration) Option {
	return option(func(s *settings) { s.wait, s.bounded = d, true })
}

// WithMetadata stores s beside the token, for people who ask who holds the key:
// a BusyError has it as Holder. At most 1 KiB of any bytes; by default none.
func WithMetadata(s string) Option {
	return option(func(set *settings) { set.metadata = s })
}

// WithReleaseTimeout bounds one Release, which takes no context, and Close: more
// than 0, by default 3 s.
func WithReleaseTimeout(d time.Duration) Option {
	return option(func(s *settings) { s.releaseTimeout = d })
}

// WithPrefix puts s before every key and channel, by default nothing. It is an
// option of New alone.
func WithPrefix(s string) Option {
	return option(func(set *settings) {
		set.prefix = s
		set.clientOnly = append(set.clientOnly, "WithPrefix")
	})
}

// WithLogger sends what an operator should know to log: trouble with renewals,
// losses, degraded waiting, never a token in full. By default it is discarded.
// It is an option of New alone.
func WithLogger(log *slog.Logger) Option {
	return option(func(s *settings) {
		if log == nil {
			s.faults = append(s.faults, "WithLogger: the logger is nil")
			return
		}
		s.log = log
		s.clientOnly = append(s.clientOnly, "WithLogger")
	})
}

// with returns the settings that a list of options makes of s.
func (s settings) with(opts []Option) settings {
	s.renewals, s.clientOnly = renewDefault, nil
	s.faults = s.faults[:len(s.faults):len(s.faults)]
	for _, opt := range opts {
		if opt == nil {
			s.faults = append(s.faults, "an option is nil")
			continue
		}
		opt.apply(&s)
	}
	if s.renewals == renewEvery|renewNever {
		s.faults = append(s.faults, "WithRenewEvery and WithoutRenewal contradict each other")
	}
	return s
}

// check returns what cannot work, each fault with its option and why.
func (s *settings) check() []string {
	faults := s.faults[:len(s.faults):len(s.faults)]
	refuse := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if s.ttl < minTTL || s.ttl > maxTTL {
		refuse("WithTTL(%v): must be from %v to 30 days", s.ttl, minTTL)
	}
	if s.ttl%time.Millisecond != 0 {
		refuse("WithTTL(%v): must be whole milliseconds", s.ttl)
	}
	if s.renewal == renewEvery && s.renewEvery <= 0 {
		refuse("WithRenewEvery(%v): must be more than 0", s.renewEvery)
	}
	if s.renewal == renewEvery && s.renewEvery > s.ttl/3*2+s.ttl%3*2/3 { // without overflow
		refuse("WithRenewEvery(%v): must be at most 2/3 of the TTL, which is %v", s.renewEvery, s.ttl)
	}
	if s.bounded && s.wait <= 0 {
		refuse("WithWait(%v): must be more than 0", s.wait)
	}
	if len(s.metadata) > maxMetadata {
		refuse("WithMetadata: must be at most %d bytes, not %d", maxMetadata, len(s.metadata))
	}
	if s.releaseTimeout <= 0 {
		refuse("WithReleaseTimeout(%v): must be more than 0", s.releaseTimeout)
	}
	return faults
}

// renewalInterval returns the time between two renewals, 0 for none.
func (s *settings) renewalInterval() time.Duration {
	switch s.renewal {
	case renewEvery:
		return s.renewEvery
	case renewNever:
		return 0
	default:
		return s.ttl / 2
	}
}
