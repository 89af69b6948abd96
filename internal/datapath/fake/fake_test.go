package fake_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/conformance"
	"github.com/hawser-net/hawser/internal/datapath/fake"
)

func TestMapsConformance(t *testing.T) {
	conformance.Maps(t, 1000, func(t *testing.T) datapath.Maps {
		n := fake.New()
		n.Maps.SetPolicyRoom(1000)
		return n.Maps
	})
}

func TestServicesConformance(t *testing.T) {
	conformance.Services(t, 1000, func(t *testing.T) datapath.Services {
		n := fake.New()
		n.Maps.SetServiceRoom(1000)
		return n.Maps
	})
}

func TestOrderOfBringingUp(t *testing.T) {
	n := fake.New()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	ep := datapath.Endpoint{ID: 1, Incarnation: 1, IfIndex: 10, IfName: "lxc1", MAC: mac, HostMAC: mac, IPv4: netip.MustParseAddr("10.0.0.1")}
	if err := n.Programs.AttachEndpoint(10); err == nil {
		t.Error("attached to an interface that is not there")
	}
	n.Links.AddLink(datapath.EndpointLink{Name: "lxc1", IfIndex: 10, MAC: mac})
	if err := n.Programs.AttachEndpoint(10); err == nil {
		t.Error("attached programs that are not loaded")
	}
	if err := n.Programs.Configure(datapath.Config{}); err != nil {
		t.Fatal(err)
	}
	if err := n.Links.EnsureEndpoint(ep); err == nil {
		t.Error("brought up an interface without programs")
	}
	if err := errors.Join(n.Programs.AttachEndpoint(10), n.Links.EnsureEndpoint(ep)); err != nil {
		t.Fatal(err)
	}
	if links, _ := n.Links.EndpointLinks(); len(links) != 1 || !links[0].Up {
		t.Errorf("links: %+v", links)
	}
	if ok, _ := n.Programs.Attached(10); !ok {
		t.Error("not attached")
	}
	for range 2 {
		if err := n.Links.DeleteEndpoint("lxc1", 10); err != nil {
			t.Error(err)
		}
	}
	if ok, _ := n.Programs.Attached(10); ok {
		t.Error("attached to an interface that went")
	}
}

func TestFaults(t *testing.T) {
	n := fake.New()
	broken := errors.New("broken")
	n.SetFault(fake.FailTimes("Maps.InstallRuleSet", 1, broken))
	if err := n.Maps.InstallRuleSet(datapath.RuleSet{ID: 1}); !errors.Is(err, broken) {
		t.Errorf("first call: %v", err)
	}
	if list, _ := n.Maps.RuleSets(); len(list) != 0 {
		t.Errorf("a failed call left %+v", list)
	}
	if err := n.Maps.InstallRuleSet(datapath.RuleSet{ID: 1}); err != nil {
		t.Errorf("second call: %v", err)
	}
	if ops := n.Ops(); len(ops) != 3 {
		t.Errorf("operations %q", ops)
	}
}
