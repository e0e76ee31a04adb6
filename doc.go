// Package leasehold gives leased locks on Redis: a process takes a key with a short
// TTL and a random token, a renewal keeps it alive every TTL/2, and when the process
// dies the key is free again within one TTL. The holder learns of a loss through a
// context, before anyone else can hold the key.
//
//	locks := leasehold.New(rdb) // any go-redis client; one Client a process
//
//	func charge(ctx context.Context, order Order) error {
//		lock := locks.NewLock("orders:" + order.ID)
//		ctx, err := lock.Acquire(ctx) // from here on ctx ends the moment the lease is lost
//		if err != nil {
//			return err
//		}
//		defer lock.Release()
//		return pay(ctx, order)
//	}
//
// A lock is not idempotency: it keeps two from working at the same time, not one
// from working twice. Where a transaction or a unique index can do it, use that.
//
// # One lease in time
//
//	        sent  granted                                       deadline
//	Acquire ──┼──────┼───────────── TTL/2 ─────────────────────────┼── drift ──┐
//	          │◄──────────────────────── TTL ─────────────────────────────────►│
//	          │      │                │                                        │
//	context   │      ├─ alive ────────┼─────────────────────────── ends ┤      │
//	renewal   │                       ├─ sent, and tried again until ───┤      │
//	key             ├─ in Redis ─────────────────────────────────────────────────┤
//
// The key's TTL begins when Redis carries out the command, which is after it was
// sent. The deadline counts from the moment it was sent, and lies TTL/100 + 2 ms
// before the end of that TTL. So the context always ends before the key does. A
// renewal that is answered moves both on by what it adds, counted from its own send.
//
// # The states of a Lock
//
//	         Acquire                granted              Release
//	free ──────────────► acquiring ──────────► held ──────────────────► free
//	 ▲                       │                  │
//	 │  busy, error, ctx     │                  │ deadline, key gone, key taken
//	 ├───────────────────────┘                  ▼
//	 │         Release: ErrLost, once          lost
//	 ├──────────────────────────────────────────┤
//	 │                                          │ Acquire
//	                                            ▼ acquiring
//
// While it is acquiring or held, another Acquire answers ErrInUse; while it is free or
// acquiring, a Release answers ErrNotHeld. A Release that fails leaves the Lock free,
// and a second one repeats the first. When the ctx given to Acquire ends, the lease's
// context ends and the Lock stays held, for a Release, until its deadline.
//
// # Promises
//
// Exclusion:
//   - G1: at any moment at most one lease context of a key is alive.
//   - G2: a lease's context ends before its key can expire in Redis, whatever hangs:
//     Redis, the network, a call inside the client.
//   - G3: no script changes a key that holds a stranger's value; renewal never
//     creates a key.
//
// Progress:
//   - G4: a dead holder's key is free one TTL after its last renewal, and the first
//     waiter holds it within 10 ms of that (on one machine).
//   - G5: an Acquire that was given up, at whatever moment, leaves no key behind
//     longer than 1 s after Redis answers our connections again.
//   - G6: lines are served first come, first served; one that Redis forgot (flush,
//     failover), skipped, or granted in vain is back at its old place with its next
//     poll, within 1 s; who gives up leaves at once; each waiter that died or stands
//     still costs the others at most 2 s.
//
// Truth:
//   - G7: a lost reply never becomes a wrong answer: not "busy" for a key that is
//     ours, not "lost" for a release that worked.
//   - G8: the fence rises strictly from holder to holder: over crashes, expiry,
//     FLUSHALL, an empty restart, a failover.
//   - G9: a loss is told once, with its reason; one failed renewal is not a loss.
//
// Manners:
//   - G10: every call returns within 50 ms of its ctx's end, Release and Close within
//     the release timeout, whatever Redis does.
//   - G11: a waiting line costs at most 2 commands a second (or 2 per TTL of the
//     holder, where that is shorter), a held lock one per TTL/2, an idle Client
//     nothing.
//   - G12: after use nothing is left: no goroutine or timer (once the client's own
//     timeouts have ended what hung), no subscription, connection, or key without a
//     TTL.
//
// # Waiting
//
// The goroutines of one Client that wait for a key stand in one line, first come first
// served, and only the first of them talks to Redis: 200 that wait cost what one does.
// The lines of all Clients stand in a queue that Redis keeps. A release grants the key
// to the first of them in the same script, and wakes that one alone, over the one
// subscription that a Client has while it waits:
//
//	holder      ── Release ──► Redis: the key is the next line's for 1.5 s
//	                             │ wake-up
//	next line   ◄────────────────┘
//	            ── poll ─────► Redis: the key is its own, for its TTL
//	            ◄── held ────────┘
//
// A wake-up is a hint: only the poll's answer makes a holder. A line polls also when
// the present lease runs out, when its subscription was lost and is back, and once a
// second, so that whatever was lost costs time and nothing else.
//
// # Limits
//
// A lock is advisory. Code that ignores its context and its fence is not stopped by
// it.
//
// A process that is paused past its deadline (SIGSTOP, a long GC, a frozen VM) cannot
// be told while it is paused; what it does first on waking may come before its
// context ends. So the lease context's own Err compares the clocks at each call, and
// so does Remaining; what cannot be undone is guarded by the fence. A context made
// from it by WithCancel or WithTimeout learns of the loss from the timer: ask the
// lease's own before what cannot be undone.
//
// G1, G2 and G4 assume that client and server clocks run at the same rate within 1 %,
// that the server's does not step, and that primaries and replicas agree within the
// drift. A wall clock that is set forward by hand ends all leases of the process.
//
// Redis replicates asynchronously: a failover can lose a key that was granted. A Redis
// that evicts, is flushed, restarts empty or from an AOF that lacks its last second
// loses locks or renewals. The old holder hears of it at its next renewal, not before.
//
// G8 holds as long as the key's record lives, which is 10 s after the last
// acquisition, or the answering server's clock has not gone back past the last fence.
//
// G5 holds for 60 s after the giving up and for the last 16 given-up values of a key;
// beyond that, after FLUSHALL, or behind a proxy that copies commands, the TTL ends it.
//
// During a cluster slot migration an acquire of a key in that slot waits until the
// slot has moved; leases go on.
//
// G6 and G11 need pub/sub. Where it is refused or cannot work (an ACL, a proxy,
// redis.Ring) a waiting line polls every 50 to 100 ms, has no place in the queue, and
// says so once in the log; those of other Clients that have one go before it. A
// subscription stays open for 30 s after the last wait.
//
// # What is in Redis
//
// The key holds the token, or the token, a space and the metadata: a plain string, so
// that a lock here and a plain SET key token NX PX from anything else exclude each
// other. Beside it stand its record, a short string with the last fence, named
// {key}:leasehold:record: (or key:leasehold:record, where the key has a hash tag), and
// while somebody waits its queue, a sorted set named likewise. Both fall in the key's
// cluster slot and expire by themselves. Wake-ups come on the channels
// leasehold:inbox:, which have the Client's prefix, too.
package leasehold
