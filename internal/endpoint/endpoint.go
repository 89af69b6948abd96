package endpoint

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// Errors by which callers distinguish why a request about an endpoint was refused. They are wrapped
// with the endpoint's name and the reason.
var (
	// ErrInvalid: the request itself is wrong; repeating it will not help.
	ErrInvalid = errors.New("invalid endpoint request")
	// ErrNotFound: no such endpoint.
	ErrNotFound = errors.New("endpoint not found")
	// ErrExists: another endpoint has the ID, the attachment or the address.
	ErrExists = errors.New("endpoint exists already")
	// ErrSuperseded: the creation was cancelled by a newer one of the same pod or by a deletion.
	ErrSuperseded = errors.New("endpoint creation was superseded")
)

// ErrNotObserved means that an endpoint drops all its packets because the rules, or the identities
// that they name, have not been observed yet.
var ErrNotObserved = errors.New("the policies and identities of the cluster have not all been observed yet")

// ErrRowNotWritten means that the kernel goes on with an endpoint's earlier row, or with a part of
// the new one, until Retry. An error of a change that is none of these is about endpoints that drop
// all their packets, or about what is to be removed: the change itself is in force.
var ErrRowNotWritten = errors.New("the kernel row was not written")

// Attachment is what the CNI plugin reports about a pod's interface. It does not change while the
// endpoint lives.
type Attachment struct {
	ContainerID     string           `json:"container-id"`
	ContainerName   string           `json:"container-name,omitempty"`
	ContainerIfName string           `json:"container-interface-name,omitempty"`
	NetnsPath       string           `json:"container-netns-path,omitempty"`
	NetnsCookie     string           `json:"netns-cookie,omitempty"`
	IfName          string           `json:"interface-name"`
	IfIndex         int              `json:"interface-index"`
	MAC             net.HardwareAddr `json:"mac"`
	HostMAC         net.HardwareAddr `json:"host-mac"`
	IPv4            netip.Addr       `json:"ipv4,omitzero"`
	IPv6            netip.Addr       `json:"ipv6,omitzero"`
	Namespace       string           `json:"k8s-namespace,omitempty"`
	PodName         string           `json:"k8s-pod-name,omitempty"`
	PodUID          string           `json:"k8s-uid,omitempty"`
	// PodCreated is when the pod was created, by the clock of Kubernetes; zero if this is not its
	// first attachment, and for an endpoint from before the agent's start.
	PodCreated time.Time `json:"-"`
	// PlainIPv4 and PlainIPv6 mean that packets leave the cluster under the pod's own address,
	// where others get the node's.
	PlainIPv4 bool `json:"skip-masquerade-ipv4,omitempty"`
	PlainIPv6 bool `json:"skip-masquerade-ipv6,omitempty"`
}

// Plain returns those of the addresses under which packets leave the cluster as they are.
func (a Attachment) Plain() []netip.Addr {
	return slices.DeleteFunc(a.Addresses(), func(ip netip.Addr) bool { return ip.Is4() && !a.PlainIPv4 || ip.Is6() && !a.PlainIPv6 })
}

// AttachmentID is the container id with the interface name, as CNI identifies an attachment, or
// without if that is not known.
func (a Attachment) AttachmentID() string {
	if a.ContainerID == "" || a.ContainerIfName == "" {
		return a.ContainerID
	}
	return a.ContainerID + ":" + a.ContainerIfName
}

// Health reports that the endpoint is the node's own, by which its network is probed.
func (e Endpoint) Health() bool { return e.Labels.HasReserved("health") }

// Pod returns namespace/name, or "" if the endpoint is not a pod's.
func (a Attachment) Pod() string {
	if a.PodName == "" {
		return ""
	}
	return a.Namespace + "/" + a.PodName
}

// Addresses returns the endpoint's one or two addresses, IPv4 first.
func (a Attachment) Addresses() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{a.IPv4, a.IPv6}, func(ip netip.Addr) bool { return !ip.IsValid() })
}

// Endpoint is one row: a pod's attachment, who it is, and how far it is realised in the kernel.
// Rows are values; a change makes a new row. Slices and maps inside are shared and must not be
// changed.
type Endpoint struct {
	ID uint16 `json:"id"`
	Attachment
	// Labels are the labels the workload came with, User those added through the API, Disabled
	// those suppressed through it.
	Labels   labels.Set `json:"labels"`
	User     labels.Set `json:"user-labels,omitempty"`
	Disabled labels.Set `json:"disabled-labels,omitempty"`
	// IdentityLabels and InfoLabels are the division of the labels by the identity filter.
	IdentityLabels labels.Set  `json:"identity-labels"`
	InfoLabels     labels.Set  `json:"info-labels,omitempty"`
	Identity       identity.ID `json:"identity"`
	// Known is the identity by which the cluster knows the endpoint while its own is temporary: the
	// last one that it had, or 0. See Seen.
	Known      identity.ID        `json:"known-identity,omitempty"`
	NamedPorts []policy.NamedPort `json:"named-ports,omitempty"`
	Audit      AuditMode          `json:"policy-audit-mode,omitempty"`
	Created    time.Time          `json:"created"`
	// Stored is when the row of an endpoint that was restored had been written.
	Stored time.Time `json:"-"`

	// Due is when the identity that has become known takes the place of the temporary one; see
	// ReplaceTemporary.
	Due time.Time `json:"-"`

	// State and what follows describe the realisation; they are not restored from disk.
	State State `json:"state"`
	// Insisted is set on an endpoint that is not ready while its change is being retried.
	Insisted bool `json:"-"`
	// Renumbered is the ID that the cluster has for the labels in place of Identity, as long as it
	// could not be put in force; Recover tries again.
	Renumbered identity.ID `json:"-"`
	// Unsaved means that the record on disk is of an earlier row; Save tries again.
	Unsaved bool `json:"-"`
	// Referenced means that this process holds a reference to Identity. A restored endpoint knows
	// its identity before it does.
	Referenced bool `json:"-"`
	// Kernel is the row last written to the kernel.
	Kernel datapath.Endpoint `json:"-"`
	// PolicyRevision is the revision of the policy that Kernel.RuleSet implements.
	PolicyRevision uint64 `json:"-"`
	// Log holds the latest state changes, oldest first.
	Log []LogEntry `json:"-"`
}

// LogEntry is one line of an endpoint's history.
type LogEntry struct {
	Time    time.Time
	OK      bool
	Message string
	State   State
}

// maxLog bounds the history kept for an endpoint.
const maxLog = 64

// withState returns the row in its next state, with a line in its history. A transition that the
// state machine does not know leaves the row as it is and reports false.
func (e Endpoint) withState(next State, now time.Time, ok bool, message string) (Endpoint, bool) {
	if !e.State.mayFollow(next) {
		return e, false
	}
	e.State = next
	return e.withLog(now, ok, message), true
}

func (e Endpoint) withLog(now time.Time, ok bool, message string) Endpoint {
	log := append(slices.Clone(e.Log), LogEntry{Time: now, OK: ok, Message: message, State: e.State})
	if len(log) > maxLog {
		log = log[len(log)-maxLog:]
	}
	e.Log = log
	return e
}

// Seen returns the identity that the endpoint's packets carry and by which all others evaluate it,
// on this node and on other nodes. It is the endpoint's own, unless that is temporary: then it is
// the last one that was published, or init if there was none. A temporary identity selects the
// rules for the endpoint's own side, and is never visible to others.
func (e Endpoint) Seen() identity.ID {
	switch {
	case !e.Identity.IsTemporary():
		return e.Identity
	case e.Known != 0:
		return e.Known
	}
	return identity.Init
}

// become returns the row with another identity.
func (e Endpoint) become(id identity.ID) Endpoint {
	switch {
	case !id.IsTemporary():
		e.Known, e.Due = 0, time.Time{}
	case e.Identity != 0 && !e.Identity.IsTemporary():
		e.Known = e.Identity
	}
	e.Identity, e.Renumbered = id, 0
	return e
}

// KernelRow is the kernel row of the endpoint under the given policy binding.
func (e Endpoint) KernelRow(ruleSet datapath.RuleSetID, generation uint32, locked bool) datapath.Endpoint {
	return datapath.Endpoint{
		ID: e.ID, IfIndex: e.IfIndex, IfName: e.IfName, MAC: e.MAC, HostMAC: e.HostMAC,
		IPv4: e.IPv4, IPv6: e.IPv6, Identity: uint32(e.Seen()),
		RuleSet: ruleSet, PolicyGeneration: generation, Locked: locked,
	}
}

// Subject identifies the endpoint to the policy engine: all endpoints of one subject share one rule
// set. The endpoint's own labels select its rules, whatever labels the cluster has for its ID. A
// temporary identity is a subject like any other, but never a peer: the kernel has its rule set,
// while the row carries the identity that others see.
func (e Endpoint) Subject() policy.Subject {
	return policy.Subject{Identity: e.Identity, NamedPorts: policy.FormatNamedPorts(e.NamedPorts), Labels: e.IdentityLabels.KVString()}
}
