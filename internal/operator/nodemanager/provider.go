package nodemanager

import (
	"context"
	"errors"
	"net/netip"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// Provider is a cloud. Its methods may be called by many at once; each of those with a context
// makes calls to the cloud, one attempt each, within the [Budget] it was made with, and fails with
// an [Error] if the cloud refuses. Changes are complete when they return, as far as the cloud
// reports. One whose nodes can have public addresses is a [StaticProvider], too.
type Provider interface {
	// Read returns everything in the cloud that addresses of pods depend on.
	Read(ctx context.Context) (*Snapshot, error)
	// ReadInstance returns the interfaces that are attached to an instance or made for it.
	ReadInstance(ctx context.Context, instance string) ([]Interface, error)
	// Limits returns those of a type of instances.
	Limits(ctx context.Context, instanceType string) (Limits, error)

	// Instance returns a node's instance as interfaces name it; "" if its agent has not written it.
	Instance(n *v2.CiliumNode) string
	// InstanceType returns the type of a node's instance; "" if its agent has not written it, or if
	// limits do not depend on it.
	InstanceType(n *v2.CiliumNode) string
	// Describe sets in v what n asks of this cloud: First, Exclude, UsePrimary, Prefixes, IPv6,
	// KeepOnTermination, Choice, Chosen and Groups, Only, and Limits if they do not depend on a
	// type. Attached and Subnets are set.
	Describe(n *v2.CiliumNode, s *Snapshot, v *View)
	// Status returns the change to the interfaces in n's status: the field of the status, and the
	// merge patch of its value. same is set if there is none.
	Status(n *v2.CiliumNode, s *Snapshot, attached []Interface) (field string, value any, same bool)

	// Assign has the cloud choose addresses or prefixes for an interface and returns them: as many
	// as the step asks for, or fewer. No address at all and no error counts as a failure. A step of
	// AssignIPv6, which comes only if Describe has set IPv6, is for one IPv6 prefix.
	Assign(ctx context.Context, s Step) ([]netip.Prefix, error)
	Unassign(ctx context.Context, s Step) error
	// Create makes an interface for an instance. It is not attached, and bears in the cloud whom it
	// is for.
	Create(ctx context.Context, instance string, s Step) (Interface, error)
	// Attach returns the interface as it is then.
	Attach(ctx context.Context, instance string, s Step) (Interface, error)
	// Modify sets whether an interface ends with its instance.
	Modify(ctx context.Context, s Step) error
	Delete(ctx context.Context, id string) error
}

// Snapshot is a cloud as it was described.
type Snapshot struct {
	Interfaces []Interface
	Subnets    map[string]Subnet
	Groups     map[string]SecurityGroup
	VPCs       map[string]VPC
}

// Kind is what a refusal means for the inventory.
type Kind uint8

// Kinds of errors of a cloud.
const (
	// Other needs nothing but another attempt later.
	Other Kind = iota
	// Exhausted: the subnet of the step has too few addresses.
	Exhausted
	// Scattered: the subnet of the step has no prefix, though it may have addresses.
	Scattered
	// Throttled: there were too many requests.
	Throttled
	// Taken: what the call was to take is another's, or there is no such thing any more.
	Taken
)

// Error is a refusal, or no answer.
type Error struct {
	Kind Kind
	// Text tells people what is wrong and what to do. It is the same each time, and contains no
	// secrets.
	Text string
	// After is for how long the cloud wants to be asked nothing, if it was asked too often.
	After time.Duration
	// Code is the cloud's word for it; "" if there was no answer.
	Code string
	Err  error
}

func (e *Error) Error() string { return e.Text }

func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the cloud's word for an error; "" if there is none.
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func kindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Other
}
