package endpoint

import "slices"

// State is where an endpoint stands in its life. The names are those of the REST API.
type State string

// The states of an endpoint.
const (
	// StateCreating: its ID and addresses are being taken.
	StateCreating State = "creating"
	// StateWaitingForIdentity: its labels are known, their ID is not.
	StateWaitingForIdentity State = "waiting-for-identity"
	// StateNotReady: a change failed. The endpoint forwards and is evaluated as before the change.
	StateNotReady State = "not-ready"
	// StateWaitingToRegenerate: its identity is known, the record and other nodes are notified.
	StateWaitingToRegenerate State = "waiting-to-regenerate"
	// StateRegenerating: its rules, row, programs and interface are being written to the kernel.
	StateRegenerating State = "regenerating"
	// StateRestoring: it was there before this agent, which has not taken it over yet.
	StateRestoring State = "restoring"
	// StateReady: the kernel implements the row.
	StateReady State = "ready"
	// StateDisconnecting: it is being removed.
	StateDisconnecting State = "disconnecting"
	// StateDisconnected: it is gone. Only its log is left, for a while.
	StateDisconnected State = "disconnected"
	// StateInvalid: it could not be made. Only its log is left, for a while.
	StateInvalid State = "invalid"
)

// transitions lists which state may follow which; "" is an endpoint that has none yet.
var transitions = map[State][]State{
	"":                       {StateCreating, StateRestoring},
	StateCreating:            {StateWaitingForIdentity, StateInvalid},
	StateWaitingForIdentity:  {StateWaitingToRegenerate, StateNotReady, StateInvalid},
	StateWaitingToRegenerate: {StateRegenerating, StateNotReady, StateRestoring, StateInvalid},
	StateRegenerating:        {StateReady, StateNotReady, StateRestoring, StateInvalid},
	StateRestoring:           {StateWaitingForIdentity, StateWaitingToRegenerate, StateReady, StateDisconnecting},
	StateReady:               {StateWaitingForIdentity, StateNotReady, StateDisconnecting},
	StateNotReady:            {StateWaitingForIdentity, StateReady, StateDisconnecting},
	StateDisconnecting:       {StateDisconnected},
}

// mayFollow reports whether an endpoint in state s may enter next. Staying is always allowed.
func (s State) mayFollow(next State) bool {
	return s == next || slices.Contains(transitions[s], next)
}

// inForce reports whether the kernel forwards for an endpoint, and evaluates it.
func (e Endpoint) inForce() bool {
	return e.State == StateReady || e.State == StateNotReady || e.State == StateRestoring && e.Identity != 0
}
