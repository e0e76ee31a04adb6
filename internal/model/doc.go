// Package model explores the protocol of a lock on one key: it goes through every
// order in which what the lines, Redis and the network do can happen, and checks in
// every state what the promises say. No production code imports it. That code names
// the steps of this model where it does the same, and the model is wrong where the
// two differ.
//
// # What it has
//
// Redis has a key, with the value of a line or free; a queue of places; and the
// values known to be dead. A line is what one Client has for the key: it asks, waits,
// holds, releases, and has a clean-up for values of acquisitions that have ended.
// Each acquisition has a value of its own. A script is one step, and so is each thing
// that happens to a command: Redis carries it out, its answer is read, its answer or
// the command is lost, or its line stops waiting for it, after which it may still
// arrive. So commands are late, out of order, and, since a line asks again, there is
// more than one of a kind.
//
// Any line may stand still in any state, for a while or for ever, since no step ever
// has to be the next: that is a process that was stopped. It may die in any state.
//
// # Time
//
// There is no clock. A key's TTL, a grant, and a lease may end at any moment, with one
// rule: a lease that was stamped before a TTL began has ended when that TTL ends. So
// each stamp knows whether the key's present TTL began after it (it is covered), and
// what was covered when the key expired is late when it is read. Nothing is said of
// the stamps of other lines, whose TTL may be longer.
//
// # What it does not have
//
// Fences, the limits of the record (16 dead values, 60 s), the end of clean-up's
// patience, FLUSHALL and failover, refusals of Redis, passes, and clients without
// pub/sub, whose release frees the key and leaves the queue: for those left, that is
// as if the key had expired. It says nothing of how long anything takes, nor of who
// comes first: [Asleep] looks at a line while the others stand still, and would not
// see one that others overtake again and again.
package model
