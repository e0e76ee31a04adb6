package model

// A Fault breaks the protocol in one way, to see that the explorer finds it.
type Fault int

const (
	// None leaves the protocol as it is.
	None Fault = iota
	// NoDeadValues lets release and leave forget to make a value dead.
	NoDeadValues
	// WakeUpBelieved makes a line hold at a wake-up, without a poll.
	WakeUpBelieved
	// StampedAtReceipt counts a lease from the receipt of the answer, not from the
	// send of its command.
	StampedAtReceipt
	// ValueUsedAgain lets every acquisition of a line have the same value.
	ValueUsedAgain
	// LeaveForgetsGrant lets leave make the value dead, and leave it a grant.
	LeaveForgetsGrant
	// ServedValueQueued lets release never make the value dead, so that a late poll
	// takes the key or a place for a value that was served already.
	ServedValueQueued
	// NoPolling lets a line that has its place ask only at a wake-up.
	NoPolling
	// LateHeldForgotten lets a held that was read after its own deadline count for
	// nothing when the acquisition is given up.
	LateHeldForgotten
)
