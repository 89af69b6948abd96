package endpoint

import "slices"

// State is where an endpoint stands in its life. The names are those of the REST API.
type State string

// The states of an endpoint.
const (
	StateWaitingForIdentity  State = "waiting-for-identity"
	StateNotReady            State = "not-ready"
	StateWaitingToRegenerate State = "waiting-to-regenerate"
	StateRegenerating        State = "regenerating"
	StateRestoring           State = "restoring"
	StateReady               State = "ready"
	StateDisconnecting       State = "disconnecting"
	StateDisconnected        State = "disconnected"
	StateInvalid             State = "invalid"
)

// transitions lists which state may follow which; "" is an endpoint that has none yet.
var transitions = map[State][]State{
	"":                       {StateWaitingForIdentity, StateRestoring},
	StateWaitingForIdentity:  {StateWaitingToRegenerate, StateRegenerating, StateReady, StateDisconnecting, StateInvalid},
	StateNotReady:            {StateWaitingForIdentity, StateWaitingToRegenerate, StateDisconnecting},
	StateWaitingToRegenerate: {StateRegenerating, StateWaitingForIdentity, StateDisconnecting, StateRestoring},
	StateRegenerating:        {StateReady, StateNotReady, StateWaitingForIdentity, StateWaitingToRegenerate, StateDisconnecting, StateRestoring},
	StateRestoring:           {StateWaitingForIdentity, StateWaitingToRegenerate, StateRegenerating, StateReady, StateDisconnecting},
	StateReady:               {StateWaitingForIdentity, StateWaitingToRegenerate, StateRegenerating, StateDisconnecting, StateRestoring},
	StateDisconnecting:       {StateDisconnected},
}

// mayFollow reports whether an endpoint in state s may enter next. Staying is always allowed.
func (s State) mayFollow(next State) bool {
	return s == next || slices.Contains(transitions[s], next)
}
