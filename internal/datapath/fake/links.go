package fake

import (
	"bytes"
	"fmt"
	"maps"
	"sync"
	"syscall"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Links keeps the interfaces of pods and the node's settings.
type Links struct {
	node *Node
	// DevicesResult is what SetNode returns; set it before use.
	DevicesResult datapath.Devices

	mu    sync.Mutex
	links map[string]datapath.EndpointLink
}

var _ datapath.Links = (*Links)(nil)

// AddLink makes the host side of a pod's interface appear, down, as the CNI plugin would.
func (l *Links) AddLink(link datapath.EndpointLink) {
	l.mu.Lock()
	defer l.mu.Unlock()
	link.MAC = bytes.Clone(link.MAC)
	l.links[link.Name] = link
}

// RemoveLink makes one disappear, as the end of the pod's namespace would.
func (l *Links) RemoveLink(ifIndex int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.links, func(_ string, link datapath.EndpointLink) bool { return link.IfIndex == ifIndex })
	l.node.Programs.Detach(ifIndex)
}

func (l *Links) present(ifIndex int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, link := range l.links {
		if link.IfIndex == ifIndex {
			return true
		}
	}
	return false
}

// EnsureEndpoint implements datapath.Links. It refuses to bring an interface up that has no
// programs.
func (l *Links) EnsureEndpoint(ep datapath.Endpoint) error {
	if err := l.node.begin("Links.EnsureEndpoint", ep); err != nil {
		return err
	}
	if !l.node.Programs.has(ep.IfIndex) {
		return fmt.Errorf("endpoint %d: interface %s would come up without its programs", ep.ID, ep.IfName)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	link, ok := l.links[ep.IfName]
	if !ok || link.IfIndex != ep.IfIndex {
		return fmt.Errorf("endpoint %d: interface %s: %w", ep.ID, ep.IfName, syscall.ENODEV)
	}
	link.Up = true
	l.links[ep.IfName] = link
	return nil
}

// ShutEndpoint implements datapath.Links.
func (l *Links) ShutEndpoint(ifIndex int) error {
	if err := l.node.begin("Links.ShutEndpoint", ifIndex); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, link := range l.links {
		if link.IfIndex == ifIndex {
			link.Up = false
			l.links[name] = link
		}
	}
	return nil
}

// DeleteEndpoint implements datapath.Links.
func (l *Links) DeleteEndpoint(ifName string, ifIndex int) error {
	if err := l.node.begin("Links.DeleteEndpoint", ifName); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if link, ok := l.links[ifName]; ok && link.IfIndex == ifIndex {
		delete(l.links, ifName)
		l.node.Programs.Detach(ifIndex)
	}
	return nil
}

// EndpointLinks implements datapath.Links.
func (l *Links) EndpointLinks() ([]datapath.EndpointLink, error) {
	if err := l.node.begin("Links.EndpointLinks", nil); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []datapath.EndpointLink
	for _, link := range l.links {
		link.MAC = bytes.Clone(link.MAC)
		list = append(list, link)
	}
	return list, nil
}

// SetNode implements datapath.Links.
func (l *Links) SetNode(n datapath.Node) (datapath.Devices, error) {
	if err := l.node.begin("Links.SetNode", n); err != nil {
		return datapath.Devices{}, err
	}
	return l.DevicesResult, nil
}
