package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link/netdump"
)

// EnsureEndpoint implements datapath.Links. It sends everything as one datagram and may be
// repeated.
func (l *Links) EnsureEndpoint(ep datapath.Endpoint) error {
	if ep.IfIndex <= 0 {
		return fmt.Errorf("endpoint %d has no interface index", ep.ID)
	}
	if len(ep.MAC) != 6 {
		return fmt.Errorf("endpoint %d has no hardware address: %q", ep.ID, ep.MAC)
	}
	l.mu.Lock()
	router4, router6 := l.router4, l.router6
	l.mu.Unlock()

	// Configuration must precede the interface's coming up, and that its routes.
	reqs := []*request{linkConf(ep.IfIndex, l.ipv6), linkUp(ep.IfIndex)}
	add := func(ip, src netip.Addr) {
		if !ip.IsValid() {
			return
		}
		r := route{dst: netip.PrefixFrom(ip, ip.BitLen()), src: src, dev: ep.IfIndex}
		reqs = append(reqs,
			r.request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE),
			neighbour(ep.IfIndex, ip, ep.MAC))
	}
	add(ep.IPv4, router4)
	add(ep.IPv6, router6)
	if err := errors.Join(l.rt.run(reqs...)...); err != nil {
		return fmt.Errorf("endpoint %d on %s: %w", ep.ID, ep.IfName, err)
	}
	l.mu.Lock()
	l.raised[ep.IfIndex] = true
	l.mu.Unlock()
	return nil
}

// ShutEndpoint implements datapath.Links.
func (l *Links) ShutEndpoint(ifIndex int) error {
	return errors.Join(l.rt.run(linkDown(ifIndex))...)
}

// EndpointLinks implements datapath.Links. Interfaces that wait for removal are not listed.
func (l *Links) EndpointLinks() ([]datapath.EndpointLink, error) {
	links, err := l.listLinks()
	if err != nil {
		return nil, err
	}
	var out []datapath.EndpointLink
	for _, link := range links {
		a := link.Attrs()
		if a.Group == RemovalGroup || !isEndpointLink(link) {
			continue
		}
		out = append(out, datapath.EndpointLink{
			Name:    a.Name,
			IfIndex: a.Index,
			MAC:     a.HardwareAddr,
			Up:      a.Flags&net.FlagUp != 0,
			Ours:    l.isOurs(link),
		})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(out, func(e datapath.EndpointLink) bool {
		_, doomed := l.doomed[e.IfIndex]
		return doomed
	}), nil
}

// PluginAlias begins the alias of an interface that Hawser's plugin has made.
const PluginAlias = "cni network "

// isOurs reports whether the interface of a pod is Hawser's: its plugin has made it, or what has
// made it, as an older plugin, has had the programs of pods put on it. An error is no reason to
// take it for that: it may have just gone.
func (l *Links) isOurs(link netlink.Link) bool {
	if strings.HasPrefix(link.Attrs().Alias, PluginAlias) {
		return true
	}
	for _, ingress := range []bool{true, false} {
		filter, err := l.filterOn(link.Attrs().Index, ingress)
		if err == nil && filter != nil && slices.Contains(l.cfg.PodPrograms, filter.Name) {
			return true
		}
	}
	return false
}

// isEndpointLink distinguishes a pod's interface from bridges and others that happen to start with
// "lxc".
func isEndpointLink(link netlink.Link) bool {
	return link.Type() == "veth" && strings.HasPrefix(link.Attrs().Name, EndpointPrefix)
}

// listAddresses lists the addresses of an interface, or of all if link is nil.
func (l *Links) listAddresses(link netlink.Link, family int) ([]netlink.Addr, error) {
	return netdump.List(func() ([]netlink.Addr, error) { return l.h.AddrList(link, family) })
}

// Names returns the names of all interfaces by their indexes.
func (l *Links) Names() (map[int]string, error) {
	links, err := l.listLinks()
	if err != nil {
		return nil, err
	}
	out := make(map[int]string, len(links))
	for _, link := range links {
		out[link.Attrs().Index] = link.Attrs().Name
	}
	return out, nil
}

// listLinks lists all interfaces.
func (l *Links) listLinks() ([]netlink.Link, error) {
	links, err := netdump.List(l.h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return links, nil
}
