package service_test

import (
	"net/netip"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/service"
)

func TestReadMesh(t *testing.T) {
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		want        service.Mesh
	}{
		{"none", nil, service.Mesh{}},
		{"global", map[string]string{"service.cilium.io/global": "true"}, service.Mesh{Global: true, Shared: true}},
		{"global, in capitals", map[string]string{"service.cilium.io/global": "True"}, service.Mesh{Global: true, Shared: true}},
		{"old name", map[string]string{"io.cilium/global-service": "true"}, service.Mesh{Global: true, Shared: true}},
		{"the new name counts", map[string]string{"io.cilium/global-service": "true", "service.cilium.io/global": "false"}, service.Mesh{}},
		{"not shared", map[string]string{"service.cilium.io/global": "true", "service.cilium.io/shared": "false"}, service.Mesh{Global: true}},
		{"not shared, old", map[string]string{"service.cilium.io/global": "true", "io.cilium/shared-service": "false"}, service.Mesh{Global: true}},
		{"shared but not global", map[string]string{"service.cilium.io/shared": "true"}, service.Mesh{}},
		{"local", map[string]string{"service.cilium.io/global": "true", "service.cilium.io/affinity": "local"}, service.Mesh{Global: true, Shared: true, Prefer: service.PreferLocal}},
		{"remote, old", map[string]string{"service.cilium.io/global": "true", "io.cilium/service-affinity": "remote"}, service.Mesh{Global: true, Shared: true, Prefer: service.PreferRemote}},
		{"nonsense", map[string]string{"service.cilium.io/global": "yes", "service.cilium.io/affinity": "far"}, service.Mesh{}},
	} {
		if diff := gocmp.Diff(tt.want, service.ReadMesh(tt.annotations)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// sharedJSON is a service as it stands in the store.
const sharedJSON = `{"cluster":"c1","namespace":"ns","name":"web","frontends":{"10.96.0.5":{"http":{"Protocol":"TCP","Port":80}}},` +
	`"backends":{"10.1.0.7":{"http":{"Protocol":"TCP","Port":8080}}},"hostnames":{"10.1.0.7":"web-0"},` +
	`"zones":{"10.1.0.7":{"zone":"z1","forZones":[{"name":"z1"}]}},"labels":{"app":"web"},"selector":{"app":"web"},` +
	`"includeExternal":true,"shared":true,"clusterID":3}`

func sharedExample() service.Shared {
	backend := netip.MustParseAddr("10.1.0.7")
	return service.Shared{
		Cluster: "c1", ClusterID: 3, Name: service.Name{Namespace: "ns", Name: "web"}, External: true, Offered: true,
		Frontends: map[netip.Addr]map[string]service.SharedPort{netip.MustParseAddr("10.96.0.5"): {"http": {Proto: 6, Port: 80}}},
		Backends:  map[netip.Addr]map[string]service.SharedPort{backend: {"http": {Proto: 6, Port: 8080}}},
		Hostnames: map[netip.Addr]string{backend: "web-0"}, Zones: map[netip.Addr]service.SharedZone{backend: {Zone: "z1", ForZones: []string{"z1"}}},
		Labels: map[string]string{"app": "web"}, Selector: map[string]string{"app": "web"},
	}
}

func TestSharedOnTheWire(t *testing.T) {
	got, err := sharedExample().Marshal()
	if err != nil || string(got) != sharedJSON {
		t.Errorf("%v\n got %s\nwant %s", err, got, sharedJSON)
	}
	back, err := service.ParseShared("c1/ns/web", []byte(sharedJSON))
	if err != nil || !back.Equal(sharedExample()) {
		t.Errorf("%v: %s", err, gocmp.Diff(sharedExample(), back, gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })))
	}
	for _, tt := range []struct{ name, key, value, want string }{
		{"another key", "c1/ns/other", sharedJSON, "holds service"},
		{"no JSON", "c1/ns/web", "{", "unexpected end"},
		{"no name", "c1/ns/", strings.Replace(sharedJSON, `"name":"web"`, `"name":""`, 1), "is no name"},
		{"no address", "c1/ns/web", strings.Replace(sharedJSON, "10.1.0.7", "here", 1), "is no address"},
		{"loopback", "c1/ns/web", strings.Replace(sharedJSON, "10.1.0.7", "127.0.0.1", 1), "is no address"},
		{"zone", "c1/ns/web", strings.Replace(sharedJSON, "10.1.0.7", "fe80::1%eth0", 1), "is no address"},
		{"protocol", "c1/ns/web", strings.Replace(sharedJSON, `"TCP","Port":8080`, `"ICMP","Port":8080`, 1), "of protocol"},
		{"port 0", "c1/ns/web", strings.Replace(sharedJSON, "8080", "0", 1), "of protocol"},
		{"too large", "c1/ns/web", strings.Repeat(" ", 5<<20), "larger than"},
	} {
		if _, err := service.ParseShared(tt.key, []byte(tt.value)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
}

// FuzzParseShared: whatever stands in the store, what is accepted is what is written back.
func FuzzParseShared(f *testing.F) {
	f.Add("c1/ns/web", []byte(sharedJSON))
	f.Add("c1/ns/web", []byte(`{"cluster":"c1","namespace":"ns","name":"web"}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		s, err := service.ParseShared(key, value)
		if err != nil {
			return
		}
		out, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := service.ParseShared(key, out)
		if err != nil || !again.Equal(s) {
			t.Fatalf("%s does not come back: %v", out, err)
		}
	})
}
