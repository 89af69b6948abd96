package mesh

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/k8s/services"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// namespaceAnnotation reports whether the services of a namespace are shared.
const namespaceAnnotation = "clustermesh.cilium.io/global"

// globalNamespace reports whether services of a namespace can be shared.
func (c Config) globalNamespace(annotations map[string]string) bool {
	if v, ok := annotations[namespaceAnnotation]; ok {
		return strings.EqualFold(v, "true")
	}
	return c.GlobalNamespaces
}

// service returns what other clusters read of a service with its endpoints; nothing if it is not
// shared.
func (c Config) service(s *corev1.Service, slices []discoveryv1.EndpointSlice, global bool) (export, error) {
	mesh := service.ReadMesh(s.Annotations)
	if !mesh.Shared || !global || s.Spec.Type == corev1.ServiceTypeExternalName {
		return export{}, nil
	}
	out := service.Shared{
		Cluster: c.ClusterName, ClusterID: c.ClusterID, Name: service.Name{Namespace: s.Namespace, Name: s.Name},
		Labels: s.Labels, Selector: s.Spec.Selector, External: mesh.Global, Offered: mesh.Shared,
		Frontends: map[netip.Addr]map[string]service.SharedPort{}, Backends: map[netip.Addr]map[string]service.SharedPort{},
		Hostnames: map[netip.Addr]string{}, Zones: map[netip.Addr]service.SharedZone{},
	}
	ports := map[string]service.SharedPort{}
	for _, p := range s.Spec.Ports {
		if proto, ok := services.Protocol(p.Protocol); ok && p.Port > 0 && p.Port <= 0xFFFF {
			ports[p.Name] = service.SharedPort{Proto: proto, Port: uint16(p.Port)}
		}
	}
	for _, text := range append(s.Spec.ClusterIPs, s.Spec.ClusterIP) {
		if ip, ok := address(text); ok { // "None" is no address
			out.Frontends[ip] = ports
		}
	}
	for _, sl := range slices {
		addSlice(&out, sl)
	}
	value, err := out.Marshal()
	return export{order: k8s.VersionOf(s), values: map[string]string{out.Name.String(): string(value)}}, err
}

// addSlice adds the endpoints of a slice that serve.
func addSlice(out *service.Shared, sl discoveryv1.EndpointSlice) {
	ports := map[string]service.SharedPort{}
	for _, p := range sl.Ports {
		if p.Port == nil || *p.Port < 1 || *p.Port > 0xFFFF {
			continue
		}
		to, ok := service.SharedPort{Proto: 6, Port: uint16(*p.Port)}, true
		if p.Protocol != nil {
			to.Proto, ok = services.Protocol(*p.Protocol)
		}
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if ok {
			ports[name] = to
		}
	}
	for _, e := range sl.Endpoints {
		ready := e.Conditions.Ready == nil || *e.Conditions.Ready
		serving := e.Conditions.Serving != nil && *e.Conditions.Serving
		if !ready && !serving || len(e.Addresses) == 0 || len(ports) == 0 {
			continue
		}
		ip, ok := address(e.Addresses[0])
		if !ok {
			continue
		}
		if out.Backends[ip] == nil {
			out.Backends[ip] = map[string]service.SharedPort{}
		}
		for name, p := range ports { // an address may be in several slices, each with other ports
			out.Backends[ip][name] = p
		}
		if e.Hostname != nil && *e.Hostname != "" {
			out.Hostnames[ip] = *e.Hostname
		}
		var z service.SharedZone
		if e.Zone != nil {
			z.Zone = *e.Zone
		}
		if e.Hints != nil {
			for _, f := range e.Hints.ForZones {
				z.ForZones = append(z.ForZones, f.Name)
			}
		}
		if z.Zone != "" || len(z.ForZones) > 0 {
			out.Zones[ip] = z
		}
	}
}

func address(text string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(text)
	return ip.Unmap(), err == nil && ip.Zone() == "" && !ip.IsUnspecified()
}

// node returns what other clusters read of a node.
func (c Config) node(o *v2.CiliumNode) (export, error) {
	n, err := nodes.Read(o, c.ClusterName, c.ClusterID)
	if err == nil {
		err = n.Validate(maxClusterID)
	}
	if err != nil {
		return export{}, fmt.Errorf("CiliumNode %s: %w", o.Name, err)
	}
	value, err := json.Marshal(n)
	return export{order: k8s.VersionOf(o), values: map[string]string{o.Name: string(value)}}, err
}

// maxClusterID is the largest ID that a cluster can have at all; that this cluster's is
// possible is checked elsewhere.
const maxClusterID = 511

// identity returns an identity in the form of the store, for other clusters; have is what the store
// contains. For an edited identity it returns the original labels, which agents of this cluster
// use, too: its digest shows whether the store still has these.
func (c Config) identity(o *v2.CiliumIdentity, layout kvstore.Layout, have string) (export, error) {
	id, err := strconv.ParseUint(o.Name, 10, 32)
	if err != nil || strconv.FormatUint(id, 10) != o.Name {
		return export{}, fmt.Errorf("CiliumIdentity %s: the name is no ID", o.Name)
	}
	if _, _, quarantined := k8sids.Quarantined(o); quarantined || o.DeletionTimestamp != nil {
		return export{}, nil
	}
	set, err := k8sids.ParseSecurityLabels(o.SecurityLabels)
	if intact, sealed := k8sids.Intact(o); sealed && !intact {
		if set, err = labels.ParseKV(layout.Decode(have)); err != nil || !k8sids.WasGiven(o, k8sids.SecurityLabels(set)) {
			return export{}, fmt.Errorf("CiliumIdentity %s: its labels were edited; restore them", o.Name)
		}
	}
	if err != nil {
		return export{}, fmt.Errorf("CiliumIdentity %s: %w", o.Name, err)
	}
	return export{order: k8s.VersionOf(o), values: map[string]string{o.Name: layout.Encode(set.KVString())}}, nil
}

// pod is what an object has of one pod.
type pod struct {
	namespace, name string
	identity        int64
	networking      *v2.EndpointNetworking
	ports           []v2.NamedPort
	account         string
	key             int
}

// endpoint returns what other clusters read of an endpoint; nothing as long as it has no identity.
func (c Config) endpoint(o *v2.CiliumEndpoint) (export, error) {
	p := pod{namespace: o.Namespace, name: o.Name, networking: o.Status.Networking, ports: o.Status.NamedPorts, account: o.Status.ServiceAccount, key: o.Status.Encryption.Key}
	if o.Status.Identity != nil {
		p.identity = o.Status.Identity.ID
	}
	values, err := p.values()
	return export{k8s.VersionOf(o), values}, err
}

// slice returns what other clusters read of the endpoints of a slice.
func (c Config) slice(o *v2alpha1.CiliumEndpointSlice) (export, error) {
	out := export{order: k8s.VersionOf(o), values: map[string]string{}}
	var fault error
	for _, e := range o.Endpoints {
		p := pod{namespace: o.Namespace, name: e.Name, identity: e.IdentityID, networking: e.Networking, ports: e.NamedPorts, account: e.ServiceAccount, key: e.Encryption.Key}
		values, err := p.values()
		if err != nil {
			fault = err // the others still go out
			continue
		}
		maps.Copy(out.values, values)
	}
	return out, fault
}

// values returns the keys and values of a pod's addresses.
func (p pod) values() (map[string]string, error) {
	if p.identity == 0 || p.networking == nil {
		return nil, nil
	}
	id := identity.ID(p.identity)
	host, ok := address(p.networking.NodeIP)
	if p.identity < 0 || p.identity > 1<<24-1 || !ok {
		return nil, fmt.Errorf("endpoint %s/%s: identity %d at %q cannot be exported to other clusters", p.namespace, p.name, p.identity, p.networking.NodeIP)
	}
	pair := ipcache.Pair{Host: host, Identity: id, Namespace: p.namespace, Pod: p.name, ServiceAccount: p.account}
	if p.key > 0 && p.key <= 255 {
		pair.EncryptKey = uint8(p.key)
	}
	for _, np := range p.ports {
		if np.Port > 0 && np.Port <= 0xFFFF {
			pair.NamedPorts = append(pair.NamedPorts, ipcache.NamedPort{Name: np.Name, Port: uint16(np.Port), Protocol: np.Protocol})
		}
	}
	out := map[string]string{}
	for _, a := range p.networking.Addressing {
		if a == nil {
			continue
		}
		for _, text := range slices.DeleteFunc([]string{a.IPv4, a.IPv6}, func(s string) bool { return s == "" }) {
			ip, ok := address(text)
			if !ok {
				return nil, fmt.Errorf("endpoint %s/%s: %q is no address", p.namespace, p.name, text)
			}
			pair.Prefix = ipcache.Single(ip)
			value, err := json.Marshal(pair)
			if err == nil {
				err = pair.Validate()
			}
			if err != nil {
				return nil, fmt.Errorf("endpoint %s/%s: %w", p.namespace, p.name, err)
			}
			out[pair.Key()] = string(value)
		}
	}
	return out, nil
}
