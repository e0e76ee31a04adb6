package model

// A Step is one thing that can happen. What takes a step, a line, Redis or the
// network, takes it whole; between any two of them anything else may happen. The
// production code names them where it does the same.
type Step string

// What a line does by itself.
const (
	// AcquireSend begins an acquisition: a value never used before, and a plain
	// acquire, which takes no place. (Where the caller waits the code has its first
	// command take one: that is this and PollSend at once.)
	AcquireSend Step = "acquire.send"
	// AcquireAgain sends the plain acquire again, with the same value, because the
	// last one was not answered or was answered after the lease's own deadline.
	AcquireAgain Step = "acquire.again"
	// AcquireGiveUp ends an acquisition that holds nothing: busy and no wait, the
	// wait or the ctx over, an error. What may be left of it goes to clean-up.
	AcquireGiveUp Step = "acquire.giveUp"
	// PollSend sends an acquire that takes the line's place or keeps it. It may
	// happen at any moment while the line waits, and needs no wake-up.
	PollSend Step = "poll.send"
	// RenewSend sends a renewal.
	RenewSend Step = "renew.send"
	// LeaseEnd ends the lease's context by the line's own clock, or because its
	// parent ended. It may happen at any moment, and has happened before a key
	// expires that was granted or prolonged after the lease's stamp.
	LeaseEnd Step = "lease.end"
	// LeaseLost forgets a lease that ended unreleased. What may be left of it goes
	// to clean-up, and the key to its TTL.
	LeaseLost Step = "lease.lost"
	// ReleaseSend ends the lease's context and then sends a release.
	ReleaseSend Step = "release.send"
	// ReleaseAgain sends a release again that was not answered.
	ReleaseAgain Step = "release.again"
	// ReleaseFail gives up a release that was not answered. What may be left goes to
	// clean-up, and the key to its TTL.
	ReleaseFail Step = "release.fail"
	// LeaveSend is the clean-up's: it sends a leave for a value of an acquisition
	// that has ended.
	LeaveSend Step = "leave.send"
	// LineDie ends the process of a line for good. What it has sent may still arrive.
	LineDie Step = "line.die"
)

// What a line reads. Other answers than these are read as they are given, since
// nobody else can tell the difference.
const (
	// ReplyHeld reads that the key is ours before the deadline of the command that
	// says so: the line holds a lease, stamped before that command's send.
	ReplyHeld Step = "reply.held"
	// ReplyLate reads it after that deadline: no lease, and the key may be ours. The
	// line asks again with the same value and place, or gives up.
	ReplyLate Step = "reply.late"
	// ReplyAlive reads that a renewal prolonged the lease.
	ReplyAlive Step = "reply.alive"
	// WakeUpPoll hears that the line's value was granted, and polls at once, or as
	// soon as the poll in flight is answered or left behind.
	WakeUpPoll Step = "wakeUp.poll"
	// WakeUpIgnore hears it of a value that asks, holds, is being released, or is in
	// clean-up.
	WakeUpIgnore Step = "wakeUp.ignore"
	// WakeUpLeave hears it of a value that nothing here waits for, holds or has in
	// flight. The value goes to clean-up.
	WakeUpLeave Step = "wakeUp.leave"
)

// What the network does.
const (
	// CommandLeftBehind ends the wait for a command's answer. The command may still
	// be carried out, long after; or it was, and its answer is lost.
	CommandLeftBehind Step = "command.leftBehind"
	// CommandLost loses a command that was left behind before Redis saw it.
	CommandLost Step = "command.lost"
	// CommandCopied makes two of one command on its way, as some proxies do. It is
	// explored apart, since G5 does not hold then.
	CommandCopied Step = "command.copied"
	// WakeUpLost loses a wake-up.
	WakeUpLost Step = "wakeUp.lost"
)

// What Redis does with an acquire, plain or a poll. Where the key is free and others
// are queued before it, two happen in one: the hand-over, and what a busy key gets.
const (
	// AcquireHold sets the free key to the value, takes its place out, and answers held.
	AcquireHold Step = "acquire.hold"
	// AcquireOurs finds the value in the key, granted by a hand-over or by an earlier
	// command, begins its TTL anew and answers held.
	AcquireOurs Step = "acquire.ours"
	// AcquireHandOver grants the free key to the head of those queued before the value.
	AcquireHandOver Step = "acquire.handOver"
	// AcquireBusy answers busy to a plain acquire.
	AcquireBusy Step = "acquire.busy"
	// AcquireQueue puts a poll's value in the queue, at the place it names or a new
	// one, and answers busy.
	AcquireQueue Step = "acquire.queue"
	// AcquireKeep finds a poll's value in the queue and answers busy.
	AcquireKeep Step = "acquire.keep"
	// AcquireDead takes and queues nothing, because the value is dead.
	AcquireDead Step = "acquire.dead"
)

// What Redis does with a renewal, a release or a leave, and with time.
const (
	// RenewAlive begins the TTL of the key anew, since it has the value.
	RenewAlive Step = "renew.alive"
	// RenewGone finds no key.
	RenewGone Step = "renew.gone"
	// RenewTaken finds a stranger's value.
	RenewTaken Step = "renew.taken"
	// ReleaseDead makes the value dead and takes its place out of the queue. It is
	// part of a release where a command of the value went unanswered.
	ReleaseDead Step = "release.dead"
	// ReleaseHandOver grants the key to the head of the queue.
	ReleaseHandOver Step = "release.handOver"
	// ReleaseDelete deletes the key, for want of a queue.
	ReleaseDelete Step = "release.delete"
	// ReleaseNotOurs finds no key, or a stranger's, and changes nothing in it.
	ReleaseNotOurs Step = "release.notOurs"
	// LeaveDead makes the value dead and takes its place out; the key was not its own.
	LeaveDead Step = "leave.dead"
	// LeaveHandOver does that and grants the key to the head of the queue.
	LeaveHandOver Step = "leave.handOver"
	// LeaveDelete does that and deletes the key, for want of a queue.
	LeaveDelete Step = "leave.delete"
	// HandOverSkip takes one or more heads out of the queue whose inbox nobody seems
	// to hear, dead or alive. It is part of any hand-over.
	HandOverSkip Step = "handOver.skip"
	// KeyExpire ends a key's TTL.
	KeyExpire Step = "key.expire"
	// GrantExpire ends a grant that nobody confirmed.
	GrantExpire Step = "grant.expire"
)

// Steps lists every step, in the order above.
func Steps() []Step {
	return []Step{
		AcquireSend, AcquireAgain, AcquireGiveUp, PollSend, RenewSend, LeaseEnd, LeaseLost,
		ReleaseSend, ReleaseAgain, ReleaseFail, LeaveSend, LineDie,
		ReplyHeld, ReplyLate, ReplyAlive, WakeUpPoll, WakeUpIgnore, WakeUpLeave,
		CommandLeftBehind, CommandLost, CommandCopied, WakeUpLost,
		AcquireHold, AcquireOurs, AcquireHandOver, AcquireBusy, AcquireQueue, AcquireKeep, AcquireDead,
		RenewAlive, RenewGone, RenewTaken,
		ReleaseDead, ReleaseHandOver, ReleaseDelete, ReleaseNotOurs,
		LeaveDead, LeaveHandOver, LeaveDelete, HandOverSkip, KeyExpire, GrantExpire,
	}
}
