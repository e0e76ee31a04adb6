package leasehold

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A Client is what the locks of one Redis share: the connection, the defaults,
// and the clean-up. Make one a process and Redis, with New. Its methods are safe
// for concurrent use. While none of its locks is held or waited for it has no
// goroutine and sends nothing.
type Client struct {
	settings settings
	door     *door
	clean    *cleanup
	inbox    *inbox
	lines    *lines

	shortTTL sync.Once // warns of a TTL below 100 ms

	mu     sync.Mutex
	closed bool
	active map[*Lock]*lease // those that acquire (nil) or hold

	// acquiring counts the calls of Acquire and TryAcquire that Close waits for.
	// It is added to under mu while the Client is open.
	acquiring sync.WaitGroup
}

// New returns a Client that keeps its locks in rdb: any go-redis client, single,
// cluster, sentinel or ring, with any options. Options given here are the
// defaults of its locks. rdb stays the caller's; it must be open until Close has
// returned. New sends nothing.
//
// It panics if rdb is nil or a typed nil, which is a mistake to be found at
// start-up.
func New(rdb redis.UniversalClient, opts ...Option) *Client {
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		panic("leasehold: New of a nil client")
	}
	s := defaultSettings().with(opts)
	c := &Client{
		settings: s,
		door:     &door{rdb: rdb},
		clean:    newCleanup(s.log),
		inbox:    newInbox(rdb, s.prefix, s.log),
		active:   make(map[*Lock]*lease),
	}
	c.lines = newLines(c.door, c.inbox, c.clean)
	return c
}

// NewLock returns a Lock for one critical section on key. It sends nothing, and
// is cheap: make one where it is used, one for each goroutine that competes.
//
// A key may be any bytes up to 64 KiB, with its prefix. Refused are the empty key,
// a key that contains } outside a hash tag, and one that ends like an auxiliary
// key of ours; like an option that cannot work, such a key is reported by Acquire
// and TryAcquire.
func (c *Client) NewLock(key string, opts ...Option) *Lock {
	if c == nil || c.door == nil {
		return &Lock{key: key}
	}
	s := &c.settings
	if len(opts) > 0 {
		own := s.with(opts)
		for _, name := range own.clientOnly {
			own.faults = append(own.faults, name+": is an option of New, not of NewLock")
		}
		own.prefix, own.log = s.prefix, s.log
		s = &own
	}
	l := &Lock{client: c, key: key, settings: s}
	if l.faults = append(checkKey(s.prefix, key), s.check()...); l.faults == nil {
		l.names = newNames(s.prefix + key)
	}
	if s.ttl < shortTTL {
		c.shortTTL.Do(func() {
			s.log.Warn("leasehold: a TTL below 100 ms leaves little time to renew", "key", key, "ttl", s.ttl)
		})
	}
	return l
}

// Close ends the Client: waits end with ErrClosed, the contexts of held leases end
// with cause ErrClosed, and their keys are released. It takes at most the
// Client's release timeout, and leaves rdb open. It ends contexts and not
// goroutines: cancel the workers and wait for them first.
//
// The error says how many keys could not be released; they are free when their
// TTL is over. Release on a Lock that Close has released answers nil, and Close's
// error otherwise. A second Close is nil.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	locks := make([]*Lock, 0, len(c.active))
	for l := range c.active {
		locks = append(locks, l)
	}
	c.mu.Unlock()

	timeout := c.settings.releaseTimeout
	if timeout <= 0 {
		timeout = defaultReleaseTimeout // the fault was reported where a Lock has it
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for _, l := range locks {
		l.endForClose()
	}
	c.acquiring.Wait()
	err := c.releaseAll(ctx, locks)
	if left := c.clean.close(ctx); left > 0 {
		c.settings.log.Warn("leasehold: closed before clean-up was done; the TTL ends what is left", "values", left)
	}
	c.inbox.close(ctx)
	return err
}

// releaseAll releases what the locks hold, some at a time.
func (c *Client) releaseAll(ctx context.Context, locks []*Lock) error {
	var mu sync.Mutex
	var failed int
	var first error
	var workers sync.WaitGroup
	queue := make(chan *Lock, len(locks))
	for _, l := range locks {
		queue <- l
	}
	close(queue)
	for range min(cleanupAtOnce, len(locks)) {
		// Owned by Close, which waits for it; ends when the queue is empty, and at
		// ctx's end each release returns at once.
		workers.Go(func() {
			for l := range queue {
				if err := l.releaseForClose(ctx); err != nil {
					mu.Lock()
					if failed++; first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	if failed == 0 {
		return nil
	}
	return newCallError(fmt.Sprintf("close: %d of %d locks were not released", failed, len(locks)), "", first)
}

// enter registers a Lock that begins to acquire.
func (c *Client) enter(l *Lock) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.active[l] = nil
	c.acquiring.Add(1)
	return nil
}

// hold registers the lease that a Lock has got.
func (c *Client) hold(l *Lock, le *lease) {
	c.lines.hold(l, le)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active[l] = le
}

// forget ends what enter (le is nil) or hold began. It may come late, when the
// Lock has already got another lease: that one stays.
func (c *Client) forget(l *Lock, le *lease) {
	if le != nil {
		c.lines.forget(l.names.name(), le)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active[l] == le {
		delete(c.active, l)
	}
}
