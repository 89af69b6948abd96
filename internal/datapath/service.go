package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// ServiceScope says whom a frontend serves.
type ServiceScope uint8

// The scopes. The values are those stored in the kernel's map.
const (
	// ServiceInside is for pods and for the node's own processes.
	ServiceInside ServiceScope = 0
	// ServiceOutside is for what comes to the node from outside of the cluster.
	ServiceOutside ServiceScope = 1
)

// String returns "inside" or "outside".
func (s ServiceScope) String() string {
	if s == ServiceOutside {
		return "outside"
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
	s := f.Addr.String() + "/" + ProtocolName(f.Proto)
	if f.Scope != ServiceInside {
		s += " from " + f.Scope.String()
	}
	return s
}

// Compare orders frontends by address, port, protocol and scope.
func (f ServiceFrontend) Compare(o ServiceFrontend) int {
	return cmp.Or(f.Addr.Compare(o.Addr), cmp.Compare(f.Proto, o.Proto), cmp.Compare(f.Scope, o.Scope))
}

// ProtocolName returns the name of a transport protocol, or its number in decimal.
func ProtocolName(proto uint8) string {
	switch proto {
	case 6:
		return "TCP"
	case 17:
		return "UDP"
	case 132:
		return "SCTP"
	}
	return fmt.Sprint(proto)
}

// Service is a row of the kernel's table of services: where packets for a frontend go.
type Service struct {
	ServiceFrontend
	// ID is the same for all frontends of one port of one service, and after a restart. Two services with
	// the same ID remember their clients' backends together, and do no other harm.
	ID uint32
	// Affinity is how long a client that falls silent keeps its backend for new flows; 0 means that every
	// flow is given a backend of its own. At most MaxServiceAffinity.
	Affinity time.Duration
	// Backends are of the frontend's family, sorted, none twice. Without any the frontend refuses.
	Backends []netip.AddrPort
}

// MaxServiceAffinity is the longest time for which a client keeps its backend.
const MaxServiceAffinity = 24 * time.Hour

// Equal says whether two rows are the same.
func (s Service) Equal(o Service) bool {
	return s.ServiceFrontend == o.ServiceFrontend && s.ID == o.ID && s.Affinity == o.Affinity && slices.Equal(s.Backends, o.Backends)
}

// Validate reports what makes the frontend unfit for the kernel.
func (f ServiceFrontend) Validate() error {
	var errs []error
	a := f.Addr.Addr()
	if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() || f.Addr.Port() == 0 {
		errs = append(errs, errors.New("no plain address and port"))
	}
	if f.Proto != 6 && f.Proto != 17 && f.Proto != 132 {
		errs = append(errs, fmt.Errorf("protocol %d has no ports to balance by", f.Proto))
	}
	if f.Scope > ServiceOutside {
		errs = append(errs, fmt.Errorf("no such scope %d", f.Scope))
	}
	if len(errs) > 0 {
		return fmt.Errorf("service %s: %w", f, errors.Join(errs...))
	}
	return nil
}

// Validate reports what makes the row unfit for the kernel, all faults joined.
func (s Service) Validate() error {
	errs := []error{s.ServiceFrontend.Validate()}
	if s.Affinity < 0 || s.Affinity > MaxServiceAffinity {
		errs = append(errs, fmt.Errorf("service %s: affinity of %s is not between 0 and %s", s.ServiceFrontend, s.Affinity, MaxServiceAffinity))
	}
	for i, b := range s.Backends {
		if !b.IsValid() || b.Port() == 0 || b.Addr().Is4() != s.Addr.Addr().Is4() || b.Addr().Is4In6() || b.Addr().Zone() != "" {
			errs = append(errs, fmt.Errorf("service %s: backend %s is no address and port of its family", s.ServiceFrontend, b))
		}
		if i > 0 && s.Backends[i-1].Compare(b) >= 0 {
			errs = append(errs, fmt.Errorf("service %s: backends are not sorted, or %s is there twice", s.ServiceFrontend, b))
		}
	}
	return errors.Join(errs...)
}

// ServiceFlow is a flow that was addressed to a frontend.
type ServiceFlow struct {
	Client   netip.AddrPort
	Frontend netip.AddrPort
	Proto    uint8
	// Backend is where the flow goes; invalid if it goes to the frontend's address as if that were no
	// service's, because it began before there was one.
	Backend netip.AddrPort
	// Answered says that the other side has been heard.
	Answered bool
}

// Services is the kernel's table of services. Implementations are safe for concurrent use. Every write is
// idempotent; deleting what is absent is not an error.
type Services interface {
	// UpsertService makes a frontend lead to exactly the backends of s. A packet meets the old row or
	// the new one, nothing between. Flows that have a backend keep it. It fails with ErrFull,
	// leaving the old row as it was, when a map has no room.
	UpsertService(s Service) error
	// DeleteService removes a frontend.
	DeleteService(f ServiceFrontend) error
	// Services lists the rows, in no order.
	Services() ([]Service, error)
	// PruneServiceSets gives back what a writer left that ended between two writes. It is for the one
	// writer of services.
	PruneServiceSets() error
	// ForgetServiceFlows calls forget for every flow that may have to do with services, and removes
	// those for which it returns true, so that their next packet is treated as a first. It returns how
	// many were removed.
	ForgetServiceFlows(ctx context.Context, forget func(ServiceFlow) bool) (int, error)
}
