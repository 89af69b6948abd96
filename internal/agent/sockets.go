package agent

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/service"
)

// nodeSockets are the sockets of the node's own processes to which the hooks of the cgroup have
// given backends.
type nodeSockets struct {
	maps  *maps.Maps
	links *link.Links
}

var _ service.Sockets = nodeSockets{}

// EndSockets implements [service.Sockets].
func (s nodeSockets) EndSockets(end func(frontend, backend netip.AddrPort) bool) (int, error) {
	var errs []error
	n, err := s.links.EndUDP(func(cookie uint64, peer netip.AddrPort) bool {
		frontend, ok, err := s.maps.SocketFrontend(cookie, unix.IPPROTO_UDP, peer)
		errs = append(errs, err)
		return ok && end(frontend, peer)
	})
	return n, errors.Join(append(errs, err)...)
}
