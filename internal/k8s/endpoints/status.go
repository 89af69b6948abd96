package endpoints

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/internal/labels"
)

// Local is an endpoint of this node, as the others are to know it.
type Local struct {
	// Number is the endpoint's ID on this node, Attachment the CNI's name for it.
	Number     uint16
	Attachment string
	// The pod, by the UID by which the runtime knows it.
	Namespace, Pod, UID string
	IPv4, IPv6          netip.Addr
	// Identity is 0 as long as there is none for the whole cluster. A new object then names none,
	// and one that is there goes on to name what it did.
	Identity       identity.ID
	IdentityLabels labels.Set
	// Labels are those that came with the pod.
	Labels     labels.Set
	NamedPorts []ipcache.NamedPort
	// State is that of the endpoint's lifecycle.
	State string
	// PodCreated is when the pod was created, by the API server's clock; zero if others know the
	// endpoint already, or it does not count.
	PodCreated time.Time

	// runtime is the UID that Set was given: the UID of a static pod's object is another, see
	// Mirror.
	runtime string
}

// Key returns the name of the endpoint's object.
func (l Local) Key() k8s.Key { return k8s.Key{Namespace: l.Namespace, Name: l.Pod} }

// sameEndpoint reports whether o is the same endpoint, of before or after a change.
func (l Local) sameEndpoint(o Local) bool { return l.Number == o.Number && l.UID == o.UID }

// Validate reports what keeps the endpoint from having an object.
func (l Local) Validate() error {
	switch {
	case l.Namespace == "" || l.Pod == "" || l.UID == "":
		return fmt.Errorf("endpoint %d is not known to be a pod's: namespace %q, name %q, uid %q", l.Number, l.Namespace, l.Pod, l.UID)
	case !l.IPv4.IsValid() && !l.IPv6.IsValid():
		return fmt.Errorf("endpoint %d (%s) has no address", l.Number, l.Key())
	}
	return nil
}

// state returns what is published of a state: others need to know only whether the endpoint
// forwards traffic.
func state(s string) v2.EndpointState {
	switch v2.EndpointState(s) {
	case v2.EndpointNotReady, v2.EndpointRestoring, v2.EndpointWaitingToRegenerate, v2.EndpointRegenerating, v2.EndpointReady, v2.EndpointDisconnecting, v2.EndpointDisconnected:
		return v2.EndpointReady
	}
	return v2.EndpointState(s)
}

// status returns the status of the endpoint's object; host is this node's address.
func (l Local) status(host netip.Addr) v2.EndpointStatus {
	pair := &v2.AddressPair{}
	if l.IPv4.IsValid() {
		pair.IPv4 = l.IPv4.String()
	}
	if l.IPv6.IsValid() {
		pair.IPv6 = l.IPv6.String()
	}
	s := v2.EndpointStatus{
		ID:                  int64(l.Number),
		ExternalIdentifiers: &v2.EndpointIdentifiers{CNIAttachmentID: l.Attachment},
		Networking:          &v2.EndpointNetworking{Addressing: []*v2.AddressPair{pair}, NodeIP: host.String()},
		State:               state(l.State),
		ServiceAccount:      l.Labels.Value(labels.SourceK8s, labels.KeyServiceAccount),
	}
	if l.Identity != 0 {
		s.Identity = &v2.EndpointIdentity{ID: int64(l.Identity), Labels: slices.Sorted(slices.Values(l.IdentityLabels.Strings()))}
	}
	for _, p := range l.NamedPorts {
		s.NamedPorts = append(s.NamedPorts, v2.NamedPort{Name: p.Name, Port: int(p.Port), Protocol: p.Protocol})
	}
	slices.SortFunc(s.NamedPorts, func(a, b v2.NamedPort) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// podLabels returns the labels that the pod itself has, without those that the network derived.
func (l Local) podLabels() map[string]string {
	var out map[string]string
	for _, lb := range l.Labels {
		if lb.Source != labels.SourceK8s || lb.Key == labels.KeyNamespace || strings.HasPrefix(lb.Key, labels.PrefixOwned) {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[lb.Key] = lb.Value
	}
	return out
}

// remote is a pod in an object, or in an entry of a slice.
type remote struct {
	key        k8s.Key
	identity   int64
	networking *v2.EndpointNetworking
	ports      []v2.NamedPort
	account    string
	uid        string        // of the pod; empty if absent
	workload   pods.Workload // zero if it is not published
	encryptKey int
	version    uint64
}

// statement converts another node's statement into a claim, or returns why it is rejected.
func (r remote) statement(accept func(identity.ID) error) (statement, error) {
	if r.identity <= 0 || r.identity > 1<<32-1 {
		return statement{}, fmt.Errorf("%d is not an identity ID", r.identity)
	}
	id := identity.ID(r.identity)
	if err := accept(id); err != nil {
		return statement{}, err
	}
	host, err := netip.ParseAddr(r.networking.NodeIP)
	if err != nil {
		return statement{}, fmt.Errorf("the address of its node, %q, is not an IP address", r.networking.NodeIP)
	}
	s := statement{age: age{version: r.version}, uid: r.uid, workload: r.workload, claim: ipcache.Claim{
		Source: ipcache.KVStore, Identity: id, Host: host.Unmap(), Namespace: r.key.Namespace, Pod: r.key.Name, ServiceAccount: r.account,
	}}
	if r.encryptKey > 0 && r.encryptKey <= 255 {
		s.claim.EncryptKey = uint8(r.encryptKey)
	}
	for _, pair := range r.networking.Addressing {
		if pair == nil {
			continue
		}
		for _, text := range []string{pair.IPv4, pair.IPv6} {
			if text == "" {
				continue
			}
			ip, err := netip.ParseAddr(text)
			ip = ip.Unmap()
			switch {
			case err != nil || ip.Zone() != "":
				return statement{}, fmt.Errorf("%q is not an IP address", text)
			case ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() || ip.IsLinkLocalUnicast():
				return statement{}, fmt.Errorf("address %s cannot be a pod's", ip)
			case ip.Is4():
				s.ip4 = ip
			default:
				s.ip6 = ip
			}
		}
	}
	for _, p := range r.ports {
		if p.Port < 1 || p.Port > 65535 {
			return statement{}, fmt.Errorf("named port %q has the number %d", p.Name, p.Port)
		}
		s.claim.NamedPorts = append(s.claim.NamedPorts, ipcache.NamedPort{Name: p.Name, Port: uint16(p.Port), Protocol: p.Protocol})
	}
	return s, nil
}
