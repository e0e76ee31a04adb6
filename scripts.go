package leasehold

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// This file alone knows the keys, arguments and replies of the scripts.

var (
	//go:embed lua/record.lua
	recordLua string
	//go:embed lua/queue.lua
	queueLua string
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/release.lua
	releaseLua string

	acquireScript = newScript("acquire", recordLua+queueLua+acquireLua, "get set pexpire pttl time zadd zrange zrem zscore publish")
	renewScript   = newScript("renew", renewLua, "get pexpire")
	releaseScript = newScript("release", recordLua+queueLua+releaseLua, "get set del time zrange zrem publish")
)

// A script is one Lua text and what Redis calls it.
type script struct {
	name  string
	text  any // boxed once, because each call puts them among its arguments
	hash  any
	needs string // the commands it calls
}

func newScript(name, text, needs string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{name: name, text: text, hash: hex.EncodeToString(sum[:]), needs: needs}
}

// auxiliaryNames are what aux is asked for.
var auxiliaryNames = []string{"queue", "record"}

// auxiliaryMark stands between a key and the name of an auxiliary key.
const auxiliaryMark = ":leasehold:"

// aux returns the name of an auxiliary key of a key. It falls in the key's
// cluster slot: where the key has a hash tag that stays the first one, elsewhere
// the whole key becomes the tag. The closing colon of the second form keeps the
// two apart, and checkKey refuses keys that end like either, so that no auxiliary
// key is ever another's, or a key that somebody may lock.
func aux(key, name string) string {
	if hasHashTag(key) {
		return key + auxiliaryMark + name
	}
	return "{" + key + "}" + auxiliaryMark + name + ":"
}

// hasHashTag tells whether Redis Cluster hashes only a part of a key: what stands
// between its first { and the next }, unless that is nothing.
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags
func hasHashTag(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	return found && closed && tag != ""
}

// maxKey is the longest key, prefix included.
const maxKey = 64 << 10

// checkKey returns what cannot work about a key with its prefix.
func checkKey(prefix, name string) []string {
	key := prefix + name
	var faults []string
	if name == "" {
		faults = append(faults, "the key is empty")
	}
	if len(key) > maxKey {
		faults = append(faults, fmt.Sprintf("the key is longer than %d bytes", maxKey))
	}
	if strings.Contains(key, "}") && !hasHashTag(key) {
		faults = append(faults, "the key contains } outside a hash tag, so that no auxiliary key falls in its cluster slot")
	}
	base := strings.TrimSuffix(key, ":")
	for _, aux := range auxiliaryNames {
		if rest, ok := strings.CutSuffix(base, aux); ok && strings.HasSuffix(rest, auxiliaryMark) {
			faults = append(faults, fmt.Sprintf("the key ends like an auxiliary key (%s%s)", auxiliaryMark, aux))
		}
	}
	return faults
}

// names are the keys of one lock in Redis, boxed once for the arguments.
type names struct {
	key    any
	record any
	queue  any
}

func (n names) name() string { return n.key.(string) }

func newNames(key string) names {
	return names{key: key, record: aux(key, "record"), queue: aux(key, "queue")}
}

// An acquisition is one value on its way to, in, and out of a key: what each of
// its commands has in common, and what is known of those without an answer.
type acquisition struct {
	door   *door
	name   string // the key as the user named it, for errors
	names  names
	value  string
	boxed  any
	ttl    time.Duration
	ttlArg any // in ms

	place  int64  // the number that Redis has given its line; 0 while it has none
	member string // its member in the queue; empty before it was to be queued

	calls     calls
	clean     *cleanup
	inCleanup atomic.Bool
	queued    atomic.Bool // its member may be in the queue, so that it can be granted the key
}

// tokenLength is the length of a token, which is the beginning of a value.
const tokenLength = 36

func (a *acquisition) token() string { return a.value[:tokenLength] }

// A grant is Redis's word that the acquisition holds the key.
type grant struct {
	fence  int64
	sentAt instant
}

// Answers of acquire that are no grant, beside *BusyError and Redis's own.
var (
	errDead    = errors.New("the value was given up before")
	errStrange = errors.New("a strange answer")
	errLate    = errors.New("the answer came after the lease's own deadline")
)

// acquire asks for the key: with *BusyError where a stranger has it. A grant that
// was read after its own deadline is no lease, so the same value asks again: if it
// still has the key, that begins a new TTL. [model: acquire.send]
func (a *acquisition) acquire(ctx context.Context) (grant, error) {
	return a.ask(ctx, "", "", command{tries: maxTries, most: callBound(a.ttl)})
}

// queue is acquire for a caller that waits if the key is busy: it gets a place, and
// is queued there where it has an address at which it hears wake-ups.
func (a *acquisition) queue(ctx context.Context, address string) (grant, error) {
	a.moveIn(address)
	return a.ask(ctx, a.place, a.member, command{tries: maxTries, most: callBound(a.ttl)})
}

// poll is queue for a caller that asks again by itself: it asks once. A ctx that
// ends while the answer is on its way waits for it a little, so that it can be told
// from a Redis that is away. [model: poll.send]
func (a *acquisition) poll(ctx context.Context, address string) (grant, error) {
	a.moveIn(address)
	return a.ask(ctx, a.place, a.member, command{tries: 1, most: min(a.ttl, time.Second), grace: pollGrace})
}

// moveIn makes the member under which the value is queued from the next command on,
// and stays so: a value has one member for its whole life.
func (a *acquisition) moveIn(address string) {
	if a.member == "" && address != "" {
		a.member = address + a.value
	}
	if a.member != "" {
		a.queued.Store(true)
	}
}

// Where those who hear a channel are: on the key's server, which can count them, or
// perhaps on another one.
const (
	heardHere      = ":"
	heardElsewhere = "~"
)

// newAddress says where a line is woken.
func newAddress(channel, heard string) string { return strconv.Itoa(len(channel)) + heard + channel }

// wakeUp reads the message of a hand-over: which value was granted which key.
func wakeUp(message string) (key, value string, ok bool) {
	length, rest, _ := strings.Cut(message, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < tokenLength || n > len(rest) {
		return "", "", false
	}
	return rest[n:], rest[:n], true
}

// pollGrace is well below the 50 ms within which a call returns after its ctx.
const pollGrace = 25 * time.Millisecond

func (a *acquisition) ask(ctx context.Context, place, member any, c command) (grant, error) {
	c.script = acquireScript
	c.out, c.open = &a.calls.asking, &a.calls.open
	c.args = []any{"evalsha", acquireScript.hash, 3, a.names.key, a.names.record, a.names.queue,
		a.boxed, a.ttlArg, place, member}
	for range maxTries {
		answer, err := a.door.call(ctx, c)
		if err != nil {
			return grant{}, acquireScript.explain(err)
		}
		switch reply := answer.reply.(type) {
		case int64:
			if newTerm(answer.sentAt, a.ttl, 0).deadline.left(now()) > 0 {
				a.queued.Store(false)
				return grant{fence: reply, sentAt: answer.sentAt}, nil // [model: reply.held]
			}
			a.calls.open.Add(1) // granted, and nobody holds it [model: reply.late, acquire.again]
		case []any:
			return grant{}, a.busy(reply)
		case string:
			return grant{}, errDead
		default:
			return grant{}, acquireScript.strange(reply)
		}
	}
	return grant{}, errLate // [model: acquire.giveUp]
}

func (a *acquisition) busy(reply []any) error {
	if len(reply) == 3 {
		a.place, _ = reply[2].(int64)
	}
	if len(reply) >= 2 {
		left, isNumber := reply[0].(int64)
		holder, isText := reply[1].(string)
		if isNumber && isText {
			return &BusyError{Key: a.name, Remaining: max(0, time.Duration(left)*time.Millisecond), Holder: holder}
		}
	}
	return acquireScript.strange(reply)
}

// renew begins the TTL anew, and returns when the command that did was sent. The
// error is a *LostError where the key is no longer ours. [model: renew.send]
func (a *acquisition) renew(ctx context.Context) (sentAt instant, err error) {
	answer, err := a.door.call(ctx, command{
		script: renewScript,
		args:   []any{"evalsha", renewScript.hash, 1, a.names.key, a.boxed, a.ttlArg},
		out:    &a.calls.renewing,
		tries:  1, most: callBound(a.ttl),
	})
	if err != nil {
		return instant{}, renewScript.explain(err)
	}
	switch answer.reply {
	case "alive":
		return answer.sentAt, nil
	default:
		return instant{}, a.notOurs(renewScript, answer.reply)
	}
}

// release frees the key, within a time of its own or until ctx ends. Where a
// command that could take the key is unanswered, it makes the value dead as well.
// The error is a *LostError where the key was not ours; earlierAt is then when an
// earlier try was sent that may have freed it, the zero instant where there was
// none. [model: release.send]
func (a *acquisition) release(ctx context.Context, within time.Duration, tries int) (earlierAt instant, err error) {
	c := command{tries: tries, most: callBound(a.ttl), within: within}
	full := a.calls.open.Load() > 0
	keys := keyAndQueue
	if full {
		keys = allKeys
	}
	answer, err := a.giveBack(ctx, c, keys)
	if hasPrefix(err, "TRYAGAIN") {
		// A slot that is being migrated takes scripts of one key that is there.
		full, earlierAt = false, answer.earlierAt
		answer, err = a.giveBack(ctx, c, keyAlone)
	}
	if earlierAt == (instant{}) {
		earlierAt = answer.earlierAt
	}
	switch {
	case err != nil:
		if full && isReply(err) && earlierAt == (instant{}) {
			earlierAt = answer.sentAt // it may have freed the key, and been refused then
		}
		return earlierAt, releaseScript.explain(err)
	case full:
		a.calls.open.Store(0)
	}
	if answer.reply == "released" {
		return instant{}, nil
	}
	return earlierAt, a.notOurs(releaseScript, answer.reply)
}

// leave makes the value dead and frees the key if it holds the value. One
// confirmed leave settles all that was unanswered, whether it arrives before or
// after it. [model: leave.send]
func (a *acquisition) leave(ctx context.Context) error {
	if _, err := a.giveBack(ctx, command{tries: 1, most: cleanupEvery}, allKeys); err != nil {
		return releaseScript.explain(err)
	}
	a.calls.open.Store(0)
	a.queued.Store(false)
	return nil
}

// How many of its keys the release script is given.
const (
	keyAlone    = 1
	keyAndQueue = 2
	allKeys     = 3 // and the record, where the value becomes dead
)

func (a *acquisition) giveBack(ctx context.Context, c command, keys int) (answer, error) {
	c.script, c.out = releaseScript, &a.calls.leaving
	c.args = []any{"evalsha", releaseScript.hash, keys, a.names.key, a.names.queue, a.names.record, a.boxed, a.member}
	c.args = slices.Delete(c.args, 3+keys, 3+allKeys)
	return a.door.call(ctx, c)
}

// settle hands the acquisition to clean-up, once, if it could still get the key: by a
// command without an answer, or from the queue. It is for an acquisition that has ended.
func (a *acquisition) settle() {
	if (a.queued.Load() || a.calls.open.Load() > 0) && a.inCleanup.CompareAndSwap(false, true) {
		a.clean.add(a)
	}
}

func (a *acquisition) notOurs(s *script, reply any) error {
	switch reply {
	case "gone":
		return &LostError{Key: a.name, Reason: LossGone}
	case "taken":
		return &LostError{Key: a.name, Reason: LossTaken}
	}
	return s.strange(reply)
}

func (s *script) strange(reply any) error {
	return fmt.Errorf("script %s: %w: %v", s.name, errStrange, reply)
}

// explain adds what a script needs where Redis forbade it, since Redis does not
// say what was missing.
func (s *script) explain(err error) error {
	if !isForbidden(err) {
		return err
	}
	return fmt.Errorf("script %s needs evalsha, eval, %s, on the key and its auxiliary keys: %w",
		s.name, strings.ReplaceAll(s.needs, " ", ", "), err)
}
