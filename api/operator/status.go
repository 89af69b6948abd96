// Package operator is the status of hawser-operator at GET /v1/status, as JSON. Only
// fields are added; readers ignore what they do not know.
package operator

import "time"

// Status is how an operator is.
type Status struct {
	// Version of the program, Name under which it stands for election, Cluster it looks after, and
	// Started, when it began.
	Version string    `json:"version"`
	Name    string    `json:"name,omitempty"`
	Cluster string    `json:"cluster"`
	Started time.Time `json:"started"`
	// Faults are what makes GET /readyz fail; none if nothing does.
	Faults []string `json:"faults,omitempty"`
	// Leader is the state of the election; nil outside of Kubernetes.
	Leader *Leader `json:"leader,omitempty"`
	// Identities are those of this cluster as Kubernetes objects; nil while this operator does not
	// lead, or keeps no such.
	Identities *Identities `json:"identities,omitempty"`
	// IdentityLabels are the labels that make identities; nil if all do, or this operator does not
	// lead.
	IdentityLabels *IdentityLabels `json:"identityLabels,omitempty"`
	// Endpoints and Slices are counted by the leader.
	Endpoints *Endpoints `json:"endpoints,omitempty"`
	Slices    *Slices    `json:"slices,omitempty"`
	// Queues are what the controllers still have to look at, by name of the controller.
	Queues []Queue `json:"queues,omitempty"`
	// Problems are the last warnings and errors, one for each part and message, newest first. They
	// stay until the operator ends.
	Problems []Problem `json:"problems,omitempty"`
}

// Leader is the leader.
type Leader struct {
	// Holder is the name of the leader as this operator knows it, empty for none. Self reports
	// whether it is this one.
	Holder string `json:"holder,omitempty"`
	Self   bool   `json:"self"`
}

// Identities counts identities.
type Identities struct {
	Total int `json:"total"`
	// Marked are about to be collected, InUse are named by endpoints or slices; the others wait to
	// be marked.
	Marked int `json:"marked"`
	InUse  int `json:"inUse"`
	// Quarantined are IDs of collected identities that are in quarantine; they are not in Total.
	Quarantined int `json:"quarantined"`
	// Duplicates are those whose labels an older one has.
	Duplicates int `json:"duplicates"`
	// Capacity is how many numbers this cluster has.
	Capacity int `json:"capacity"`
}

// IdentityLabels are the labels that make identities, where only those do by which policies select.
type IdentityLabels struct {
	// Generation counts the changes.
	Generation uint64 `json:"generation"`
	// Keys are those of the labels that make identities; with All every label does. Ready and
	// AllReady are those by which policies may be evaluated.
	Keys     []string `json:"keys"`
	All      bool     `json:"all"`
	Ready    []string `json:"ready"`
	AllReady bool     `json:"allReady"`
	// Identities is how many pods need now, WithAllLabels how many they would if all labels
	// counted.
	Identities    int `json:"identities"`
	WithAllLabels int `json:"withAllLabels"`
	// WaitingFor is what the next change waits for.
	WaitingFor []string `json:"waitingFor,omitempty"`
}

// Endpoints counts CiliumEndpoints.
type Endpoints struct {
	Total           int `json:"total"`
	WithoutIdentity int `json:"withoutIdentity"`
}

// Slices counts CiliumEndpointSlices and what is in them.
type Slices struct {
	Total     int `json:"total"`
	Endpoints int `json:"endpoints"`
}

// Queue is the work of one controller.
type Queue struct {
	Name string `json:"name"`
	// Waiting are the objects to look at, Retries how often one was put back because it failed.
	Waiting int `json:"waiting"`
	Retries int `json:"retries"`
}

// Problem is a warning or error.
type Problem struct {
	Part    string    `json:"part,omitempty"`
	Message string    `json:"message"`
	Error   string    `json:"error,omitempty"`
	Last    time.Time `json:"last"`
	Count   int       `json:"count"`
}
