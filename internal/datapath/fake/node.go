package fake

import (
	"fmt"
	"sync"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Fault decides whether an operation fails. op is the interface and method, such as
// "Maps.UpsertEndpoint"; arg is its first argument. A nil error lets it go on. It is called without
// any lock held, so it may look at the Node.
type Fault func(op string, arg any) error

// Node is the kernel of one node.
type Node struct {
	Maps     *Maps
	Programs *Programs
	Links    *Links

	mu    sync.Mutex
	fault Fault
	ops   []string
}

// New returns the kernel of a node freshly booted: no maps filled, no programs, no pods.
func New() *Node {
	n := &Node{}
	n.Maps = newMaps(n)
	n.Programs = &Programs{node: n, attached: make(map[int]int)}
	n.Links = &Links{node: n, links: make(map[string]datapath.EndpointLink), DevicesResult: datapath.Devices{
		TunnelIfIndex: 2, HostIfIndex: 3, NativeIfIndex: 4, HostMAC: []byte{2, 0, 0, 0, 0, 1}, DeviceMTU: 1500, RouteMTU: 1450,
	}}
	return n
}

// SetFault replaces the fault of all three parts; nil means that nothing fails.
func (n *Node) SetFault(f Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = f
}

// FailTimes returns a Fault under which the first times calls of an operation fail.
func FailTimes(op string, times int, err error) Fault {
	var mu sync.Mutex
	return func(called string, _ any) error {
		mu.Lock()
		defer mu.Unlock()
		if called != op || times <= 0 {
			return nil
		}
		times--
		return fmt.Errorf("fault: %s: %w", op, err)
	}
}

// Ops returns the names of all operations called so far, in order, those that failed included.
func (n *Node) Ops() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.ops...)
}

// begin records an operation and asks the fault.
func (n *Node) begin(op string, arg any) error {
	n.mu.Lock()
	n.ops = append(n.ops, op)
	fault := n.fault
	n.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(op, arg)
}
