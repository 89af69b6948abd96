package endpoint

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/hawser-net/hawser/internal/labels"
)

// What tests outside of the package use of its inside.

// RowOf returns a row that conflicts with that of no other n.
func RowOf(n int) Endpoint {
	return Endpoint{
		Attachment: Attachment{
			ContainerID: fmt.Sprintf("container-%d", n), ContainerIfName: "eth0", IfName: fmt.Sprintf("lxc%d", n), IfIndex: 100 + n,
			MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(n)}, HostMAC: net.HardwareAddr{2, 1, 0, 0, 0, byte(n)},
			IPv4: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00::%x", n)),
			Namespace: "ns", PodName: fmt.Sprintf("pod-%d", n),
		},
		Labels: labels.NewSet(labels.New(labels.SourceK8s, "app", fmt.Sprintf("app-%d", n))), Created: time.Unix(1000, 0).UTC(),
	}
}

// MaxLog bounds the history kept for an endpoint.
const MaxLog = maxLog

// Owner is the name under which the endpoint's addresses are taken.
func (a Attachment) Owner() string { return a.owner() }

// Queued reports whether a caller waits for the row of an endpoint, of any with 0.
func (l *Lifecycle) Queued(id uint16) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for of, lock := range l.locks {
		if (id == 0 || id == of) && lock.users > 1 {
			return true
		}
	}
	return false
}

// Remembered returns how many creations and locks of rows are remembered.
func (l *Lifecycle) Remembered() (creations, locks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.creating), len(l.locks)
}

// ReacquireOne is Reacquire of one endpoint, once.
func (l *Lifecycle) ReacquireOne(ctx context.Context, id uint16) error { return l.reacquire(ctx, id) }

// Lock takes the lock of an endpoint's row.
func (l *Lifecycle) Lock(id uint16) (unlock func()) { return l.lock(id) }
