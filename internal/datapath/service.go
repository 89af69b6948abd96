package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/validate"
)

// ServiceScope is the clients that a frontend is for.
type ServiceScope uint8

// The scopes. The values are those stored in the kernel's map.
const (
	// ServiceInternal is for pods and for the node's own processes.
	ServiceInternal ServiceScope = 0
	// ServiceExternal is for what comes to the node from outside of the cluster.
	ServiceExternal ServiceScope = 1
	// ServiceNode is for the node's own processes only, at loopback addresses: 127.0.0.1 and ::1.
	// The first stands for all of 127.0.0.0/8 that have no row of their own.
	ServiceNode ServiceScope = 2
	// ServiceRemoteNode is for pods, at a port of any other node: the address is the unspecified
	// one of its family.
	ServiceRemoteNode ServiceScope = 3
)

// String returns "inside", "outside", "node" or "other-node".
func (s ServiceScope) String() string {
	switch s {
	case ServiceRemoteNode:
		return "other-node"
	case ServiceExternal:
		return "outside"
	case ServiceNode:
		return "node"
	}
	return "inside"
}

// ServiceFrontend is what clients of a service address: the key of a row.
type ServiceFrontend struct {
	Addr  netip.AddrPort
	Proto uint8 // 6, 17 or 132
	Scope ServiceScope
}

// String returns the frontend as in "10.96.0.1:443/TCP".
func (f ServiceFrontend) String() string {
	s := f.Addr.String() + "/" + ProtoName(f.Proto)
	if f.Scope != ServiceInternal {
		s += " from " + f.Scope.String()
	}
	return s
}

// Compare orders frontends by address, port, protocol and scope.
func (f ServiceFrontend) Compare(o ServiceFrontend) int {
	return cmp.Or(f.Addr.Compare(o.Addr), cmp.Compare(f.Proto, o.Proto), cmp.Compare(f.Scope, o.Scope))
}

// Service is a row of the kernel's table of services: where packets for a frontend go.
type Service struct {
	ServiceFrontend
	// ID is the same for all frontends of one port of one service, and after a restart. Two
	// services with the same ID remember their clients' backends together, and do no other harm.
	ID uint32
	// Affinity is how long a client that falls silent keeps its backend for new flows; 0 means that
	// every flow is given a backend of its own. At most MaxServiceAffinity.
	Affinity time.Duration
	// Backends are of the frontend's family, sorted, none twice. Without any the frontend refuses
	// clients, at once.
	Backends []netip.AddrPort
	// RemoteOnly means that a frontend without backends has some on other nodes, which it may not
	// use: clients get no answer, because another node would serve them. The node's own processes
	// get "no route to host".
	RemoteOnly bool
	// LimitSources has the frontend serve clients of the source ranges Sources only, which are of
	// its family, masked, sorted, none twice; without any it serves no client.
	LimitSources bool
	Sources      []netip.Prefix
	// Maglev has every node choose the same backend for a flow, if it has the same backends.
	// Otherwise a backend is chosen at random.
	Maglev bool
	// DSR has a pod's own node answer clients outside that this node forwards to it; otherwise the
	// answers pass this node (SNAT).
	DSR bool
}

// MaxMaglevBackends is how many backends a frontend with Maglev can have. It is far more than is
// sensible: beyond a hundredth of it, some backends get noticeably more than others.
const MaxMaglevBackends = 16381

// MaxServiceAffinity is the longest time for which a client keeps its backend.
const MaxServiceAffinity = 24 * time.Hour

// Equal reports whether two rows are the same.
func (s Service) Equal(o Service) bool {
	return s.ServiceFrontend == o.ServiceFrontend && s.ID == o.ID && s.Affinity == o.Affinity && s.RemoteOnly == o.RemoteOnly && s.DSR == o.DSR && s.SameSet(o)
}

// SameSet reports whether two rows have the same backends, source ranges and choice of backends,
// whatever their frontends are.
func (s Service) SameSet(o Service) bool {
	return slices.Equal(s.Backends, o.Backends) && s.LimitSources == o.LimitSources && slices.Equal(s.Sources, o.Sources) && s.Maglev == o.Maglev
}

// Validate reports what makes the frontend unfit for the kernel.
func (f ServiceFrontend) Validate() error {
	var errs validate.Errors
	a := f.Addr.Addr()
	errs.If(!a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() != (f.Scope == ServiceRemoteNode) || f.Addr.Port() == 0, "no plain address and port")
	errs.If(f.Proto != 6 && f.Proto != 17 && f.Proto != 132, "protocol %d has no ports to balance by", f.Proto)
	errs.If(f.Scope > ServiceRemoteNode, "no such scope %d", f.Scope)
	if len(errs) > 0 {
		return fmt.Errorf("service %s: %w", f, errs.Err())
	}
	return nil
}

// Validate reports what makes the row unfit for the kernel, all faults joined.
func (s Service) Validate() error {
	errs := validate.Errors{s.ServiceFrontend.Validate()}
	errs.If(s.Affinity < 0 || s.Affinity > MaxServiceAffinity, "service %s: affinity of %s is not between 0 and %s", s.ServiceFrontend, s.Affinity, MaxServiceAffinity)
	for i, b := range s.Backends {
		if !b.IsValid() || b.Port() == 0 || b.Addr().Is4() != s.Addr.Addr().Is4() || b.Addr().Is4In6() || b.Addr().Zone() != "" {
			errs.Add("service %s: backend %s is no address and port of its family", s.ServiceFrontend, b)
		}
		if i > 0 && s.Backends[i-1].Compare(b) >= 0 {
			errs.Add("service %s: backends are not sorted, or %s is listed twice", s.ServiceFrontend, b)
		}
	}
	errs.If(s.RemoteOnly && len(s.Backends) > 0, "service %s: has %d backends, so they cannot all be on other nodes", s.ServiceFrontend, len(s.Backends))
	errs.If(s.DSR && s.Scope != ServiceExternal, "service %s: only clients outside can be answered directly", s.ServiceFrontend)
	errs.If(s.Maglev && len(s.Backends) > MaxMaglevBackends, "service %s: has %d backends, of which at most %d can be chosen consistently", s.ServiceFrontend, len(s.Backends), MaxMaglevBackends)
	return errors.Join(append(errs, s.validateSources()...)...)
}

func (s Service) validateSources() (errs []error) {
	if !s.LimitSources && len(s.Sources) > 0 {
		errs = append(errs, fmt.Errorf("service %s: has ranges of clients, but is for all", s.ServiceFrontend))
	}
	for i, p := range s.Sources {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4() != s.Addr.Addr().Is4() || p.Addr().Is4In6() {
			errs = append(errs, fmt.Errorf("service %s: %s is no range of clients of its family", s.ServiceFrontend, p))
		}
		if i > 0 && s.Sources[i-1].Compare(p) >= 0 {
			errs = append(errs, fmt.Errorf("service %s: ranges of clients are not sorted, or %s is listed twice", s.ServiceFrontend, p))
		}
	}
	return errs
}

// AtMost returns s with n of its backends if it has more: first of those that are also in had.
func (s Service) AtMost(n int, had []netip.AddrPort) Service {
	if len(s.Backends) <= n {
		return s
	}
	var list, rest []netip.AddrPort
	for _, b := range s.Backends {
		if slices.Contains(had, b) {
			list = append(list, b)
		} else {
			rest = append(rest, b)
		}
	}
	list = append(list, rest...)[:n]
	slices.SortFunc(list, netip.AddrPort.Compare)
	s.Backends = list
	return s
}

// ServiceFlow is a flow that was addressed to a frontend.
type ServiceFlow struct {
	Client   netip.AddrPort
	Frontend netip.AddrPort
	Proto    uint8
	// Backend is where the flow goes; invalid if it goes to the frontend's address as if that were
	// no service's, because it began before there was one.
	Backend netip.AddrPort
	// Answered means that the other side has answered.
	Answered bool
}

// Services is the kernel's table of services. Implementations are safe for concurrent use. Every
// write is idempotent; deleting what is absent is not an error.
type Services interface {
	// UpsertService makes a frontend lead to exactly the backends of s. A packet meets the old row
	// or the new one, nothing between. Flows that have a backend keep it. When a map has no room
	// for both, new flows to the frontend are dropped for a moment; when it has none for s in place
	// of the old row, it fails with ErrFull, and the frontend leads to no more backends than
	// before, first of all those that it led to, and to none that is not of s.
	UpsertService(s Service) error
	// DeleteService removes a frontend.
	DeleteService(f ServiceFrontend) error
	// Services lists the rows, in no order.
	Services() ([]Service, error)
	// RecheckServices lists the rows like Services, and takes what the kernel has for what was
	// written: UpsertService writes what is missing of that. changed are the frontends that differ
	// from what was written, in no order: another process has changed them. It is for the one
	// writer of services.
	RecheckServices() (rows []Service, changed []ServiceFrontend, err error)
	// PruneServiceSets gives back what a writer left that ended between two writes. It is for the
	// one writer of services.
	PruneServiceSets() error
	// ForgetServiceFlows calls forget for every flow that may have to do with services, and removes
	// those for which it returns true, so that their next packet is treated as a first. The way
	// back of a flow through a service is removed by a later call, which asks for the flow again.
	// It returns how many were removed.
	ForgetServiceFlows(ctx context.Context, forget func(ServiceFlow) bool) (int, error)
}
