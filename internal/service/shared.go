package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Annotations by which a service is shared between clusters. Each has an older name that counts
// where the newer is missing.
const (
	annotationGlobal      = "service.cilium.io/global"
	annotationShared      = "service.cilium.io/shared"
	annotationAffinity    = "service.cilium.io/affinity"
	annotationOldGlobal   = "io.cilium/global-service"
	annotationOldShared   = "io.cilium/shared-service"
	annotationOldAffinity = "io.cilium/service-affinity"
)

// Prefer selects the clusters whose backends get the traffic of a global service.
type Prefer uint8

// The preferences.
const (
	// PreferNone takes all backends, wherever they are.
	PreferNone Prefer = iota
	// PreferLocal takes those of other clusters only while this one has none that is ready.
	PreferLocal
	// PreferRemote takes those of this cluster only while no other has one.
	PreferRemote
)

// Mesh is a service's annotations about other clusters. The zero value is not shared.
type Mesh struct {
	// Global has backends of other clusters' services of the same name count.
	Global bool
	// Shared offers this cluster's backends to the others; only a global service can.
	Shared bool
	Prefer Prefer
}

// ReadMesh reads the annotations of a service. What is not understood is as if it was not there.
func ReadMesh(annotations map[string]string) Mesh {
	get := func(name, old string) string {
		v, ok := annotations[name]
		if !ok {
			v = annotations[old]
		}
		return strings.ToLower(v)
	}
	var m Mesh
	m.Global = get(annotationGlobal, annotationOldGlobal) == "true"
	m.Shared = m.Global && get(annotationShared, annotationOldShared) != "false"
	switch get(annotationAffinity, annotationOldAffinity) {
	case "local":
		m.Prefer = PreferLocal
	case "remote":
		m.Prefer = PreferRemote
	}
	return m
}

// IsMeshAnnotation reports whether [ReadMesh] looks at an annotation of that name.
func IsMeshAnnotation(name string) bool {
	return slices.Contains([]string{
		annotationGlobal, annotationShared, annotationAffinity, annotationOldGlobal, annotationOldShared, annotationOldAffinity,
	}, name)
}

// Shared is a service as its cluster offers it to others, in the key-value store.
type Shared struct {
	Cluster   string
	ClusterID uint32
	Name      Name
	// Frontends are its own addresses, none for a headless service; Backends those that serve. Both
	// by address, then by name of the port.
	Frontends map[netip.Addr]map[string]SharedPort
	Backends  map[netip.Addr]map[string]SharedPort
	// Hostnames and Zones are details of some backends.
	Hostnames map[netip.Addr]string
	Zones     map[netip.Addr]SharedZone
	Labels    map[string]string
	Selector  map[string]string
	// External has the writer's own cluster use backends of others; Offered lets others use these.
	External bool
	Offered  bool
}

// SharedPort is a port of a shared service.
type SharedPort struct {
	Proto uint8
	Port  uint16
}

// SharedZone is where a backend is, and whose clients should be sent there.
type SharedZone struct {
	Zone     string
	ForZones []string
}

// Bounds of what is read from the store.
const (
	maxSharedValue = 4 << 20
	maxSharedAddrs = 20_000
	maxSharedPorts = 1000
)

// wireShared is the JSON of a shared service as it stands in the store.
type wireShared struct {
	Cluster         string                         `json:"cluster"`
	Namespace       string                         `json:"namespace"`
	Name            string                         `json:"name"`
	Frontends       map[string]map[string]wirePort `json:"frontends"`
	Backends        map[string]map[string]wirePort `json:"backends"`
	Hostnames       map[string]string              `json:"hostnames,omitempty"`
	Zones           map[string]wireZone            `json:"zones,omitempty"`
	Labels          map[string]string              `json:"labels"`
	Selector        map[string]string              `json:"selector"`
	IncludeExternal bool                           `json:"includeExternal"`
	Shared          bool                           `json:"shared"`
	ClusterID       uint32                         `json:"clusterID"`
}

// wirePort has no names of its own on the wire.
type wirePort struct {
	Protocol string
	Port     uint16
}

type wireZone struct {
	Zone     string         `json:"zone"`
	ForZones []wireZoneName `json:"forZones"`
}

type wireZoneName struct {
	Name string `json:"name"`
}

// GetKeyName returns the service's key behind the prefix: <cluster>/<namespace>/<name>.
func (s Shared) GetKeyName() string { return s.Cluster + "/" + s.Name.String() }

// Marshal returns the value of the service's key.
func (s Shared) Marshal() ([]byte, error) {
	w := wireShared{
		Cluster: s.Cluster, Namespace: s.Name.Namespace, Name: s.Name.Name, Labels: s.Labels, Selector: s.Selector,
		IncludeExternal: s.External, Shared: s.Offered, ClusterID: s.ClusterID,
		Frontends: toWirePorts(s.Frontends), Backends: toWirePorts(s.Backends),
	}
	for a, h := range s.Hostnames {
		if w.Hostnames == nil {
			w.Hostnames = map[string]string{}
		}
		w.Hostnames[a.String()] = h
	}
	for a, z := range s.Zones {
		if w.Zones == nil {
			w.Zones = map[string]wireZone{}
		}
		to := wireZone{Zone: z.Zone}
		for _, n := range z.ForZones {
			to.ForZones = append(to.ForZones, wireZoneName{n})
		}
		w.Zones[a.String()] = to
	}
	return json.Marshal(w)
}

func toWirePorts(from map[netip.Addr]map[string]SharedPort) map[string]map[string]wirePort {
	out := make(map[string]map[string]wirePort, len(from))
	for a, ports := range from {
		to := make(map[string]wirePort, len(ports))
		for name, p := range ports {
			to[name] = wirePort{datapath.ProtoName(p.Proto), p.Port}
		}
		out[a.String()] = to
	}
	return out
}

// ParseShared reads a service from the store: the part of its key behind the prefix, and its value.
// The service must be that of the key and make sense.
func ParseShared(key string, value []byte) (Shared, error) {
	if len(value) > maxSharedValue {
		return Shared{}, fmt.Errorf("service %q: a value of %d bytes is larger than %d", key, len(value), maxSharedValue)
	}
	var w wireShared
	if err := json.Unmarshal(value, &w); err != nil {
		return Shared{}, fmt.Errorf("service %q: %w", key, err)
	}
	s := Shared{
		Cluster: w.Cluster, ClusterID: w.ClusterID, Name: Name{w.Namespace, w.Name}, Labels: w.Labels, Selector: w.Selector,
		External: w.IncludeExternal, Offered: w.Shared,
	}
	for _, part := range []string{w.Cluster, w.Namespace, w.Name} {
		if part == "" || strings.Contains(part, "/") {
			return Shared{}, fmt.Errorf("service %q: %q is no name of a cluster, namespace or service", key, part)
		}
	}
	if s.GetKeyName() != key {
		return Shared{}, fmt.Errorf("the key of service %q holds service %q", key, s.GetKeyName())
	}
	var errs [4]error
	s.Frontends, errs[0] = fromWirePorts(w.Frontends)
	s.Backends, errs[1] = fromWirePorts(w.Backends)
	s.Hostnames, errs[2] = byAddr(w.Hostnames, func(h string) string { return h })
	s.Zones, errs[3] = byAddr(w.Zones, func(z wireZone) SharedZone {
		to := SharedZone{Zone: z.Zone}
		for _, n := range z.ForZones {
			to.ForZones = append(to.ForZones, n.Name)
		}
		return to
	})
	if err := errors.Join(errs[:]...); err != nil {
		return Shared{}, fmt.Errorf("service %q: %w", key, err)
	}
	return s, nil
}

// byAddr returns a map by address of one by the text of it; nil if that is empty.
func byAddr[V, W any](from map[string]W, convert func(W) V) (map[netip.Addr]V, error) {
	if len(from) == 0 {
		return nil, nil
	}
	if len(from) > maxSharedAddrs {
		return nil, fmt.Errorf("%d addresses are more than %d", len(from), maxSharedAddrs)
	}
	out := make(map[netip.Addr]V, len(from))
	for text, v := range from {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() || !usable(a) || a.IsLoopback() || a.IsLinkLocalUnicast() {
			return nil, fmt.Errorf("%q is no address of a service", text)
		}
		out[a] = convert(v)
	}
	return out, nil
}

func fromWirePorts(from map[string]map[string]wirePort) (map[netip.Addr]map[string]SharedPort, error) {
	var errs []error
	out, err := byAddr(from, func(ports map[string]wirePort) map[string]SharedPort {
		if len(ports) > maxSharedPorts {
			errs = append(errs, fmt.Errorf("%d ports of one address are more than %d", len(ports), maxSharedPorts))
			return nil
		}
		to := make(map[string]SharedPort, len(ports))
		for name, p := range ports {
			proto, ok := map[string]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}[p.Protocol]
			if !ok || p.Port == 0 {
				errs = append(errs, fmt.Errorf("port %q is %d of protocol %q", name, p.Port, p.Protocol))
				continue
			}
			to[name] = SharedPort{proto, p.Port}
		}
		return to
	})
	return out, errors.Join(append(errs, err)...)
}

// slices returns the backends as parts of the service of that name, as those of a slice are. All of
// them count as ready: clusters export no backend that cannot serve.
func (s Shared) slices() []Slice {
	type port struct {
		name string
		SharedPort
	}
	byPort := map[port][]Endpoint{}
	for a, ports := range s.Backends {
		e := Endpoint{Addr: a, Ready: true, Serving: true, Cluster: s.Cluster, ForZones: s.Zones[a].ForZones}
		for name, p := range ports {
			byPort[port{name, p}] = append(byPort[port{name, p}], e)
		}
	}
	var out []Slice
	for p, list := range byPort {
		out = append(out, Slice{
			Name: s.Name, Service: s.Name.Name, Ports: []SlicePort{{Name: p.name, Proto: p.Proto, Port: p.Port}}, Endpoints: list,
		})
	}
	return out
}

// Equal reports whether two are the same in everything.
func (s Shared) Equal(o Shared) bool {
	samePorts := func(a, b map[string]SharedPort) bool { return maps.Equal(a, b) }
	return s.Cluster == o.Cluster && s.ClusterID == o.ClusterID && s.Name == o.Name && s.External == o.External && s.Offered == o.Offered &&
		maps.EqualFunc(s.Frontends, o.Frontends, samePorts) && maps.EqualFunc(s.Backends, o.Backends, samePorts) &&
		maps.Equal(s.Hostnames, o.Hostnames) && maps.Equal(s.Labels, o.Labels) && maps.Equal(s.Selector, o.Selector) &&
		maps.EqualFunc(s.Zones, o.Zones, func(a, b SharedZone) bool { return a.Zone == b.Zone && slices.Equal(a.ForZones, b.ForZones) })
}
