package datapath

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestInterfaceValidate(t *testing.T) {
	mac, _ := net.ParseMAC("02:00:00:00:00:01")
	good := Interface{
		MAC: mac, Number: 1, MTU: 9001,
		Subnets:  []Subnet{{CIDR: netip.MustParsePrefix("10.0.1.0/24")}, {CIDR: netip.MustParsePrefix("fd00:1::/64"), Gateway: netip.MustParseAddr("fe80::1")}},
		VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, Pods: []netip.Prefix{netip.MustParsePrefix("10.0.1.5/32"), netip.MustParsePrefix("fd00:1:0:0:5::/80")},
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	if got := good.Subnets[0].Router().String(); got != "10.0.1.1" {
		t.Errorf("the router of 10.0.1.0/24 is %s", got)
	}
	for _, row := range []struct {
		change func(*Interface)
		want   string
	}{
		{func(i *Interface) { i.MAC = nil }, "not 6 bytes"},
		{func(i *Interface) { i.Number = -1 }, "number -1"},
		{func(i *Interface) { i.Number = MaxInterfaces }, "number 128"},
		{func(i *Interface) { i.MTU = 100 }, "MTU 100"},
		{func(i *Interface) { i.Subnets = []Subnet{{}} }, "malformed"},
		{func(i *Interface) { i.Subnets = append(i.Subnets[:1:1], i.Subnets[0]) }, "several subnets"},
		{func(i *Interface) {
			i.Subnets = []Subnet{{CIDR: i.Subnets[0].CIDR, Gateway: netip.MustParseAddr("fe80::1")}}
		}, "other family"},
		{func(i *Interface) { i.VPCCIDRs = []netip.Prefix{{}} }, "malformed"},
		{func(i *Interface) { i.Pods = []netip.Prefix{{}} }, "malformed"},
		{func(i *Interface) { i.Pods = []netip.Prefix{netip.MustParsePrefix("fd00::1/80")} }, "malformed"},
	} {
		i := good
		row.change(&i)
		if err := i.Validate(); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%v, want %q", err, row.want)
		}
	}
}
