package aws

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// TestIPv6 has prefixes delegated, each once, and each limit refused with nothing changed.
func TestIPv6(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	c.AddVPCIPv6("vpc-1", netip.MustParsePrefix("2600:1f18:1:ab00::/56"))
	c.AddSubnetIPv6("subnet-1", netip.MustParsePrefix("2600:1f18:1:ab01::/64"))
	for id, kind := range map[string]string{"i-old": "m1.small", "i-xen": "t2.small", "i-nano": "t3.nano"} {
		if _, err := c.AddInstance(id, kind, "subnet-1", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	c.PlaceIPv6("i-1", netip.MustParseAddr("2600:1f18:1:ab01::11"))
	of := func(instance string) Interface {
		for _, i := range c.Interfaces() {
			if i.Instance == instance {
				return i
			}
		}
		t.Fatalf("no interface of %s", instance)
		return Interface{}
	}
	assign := func(eni string, more ...string) (int, string) {
		t.Helper()
		return ask(t, s, "AssignIpv6Addresses", append([]string{"NetworkInterfaceId", eni}, more...)...)
	}
	seen := map[netip.Prefix]bool{}
	for range 2 {
		status, text := assign(of("i-1").ID, "Ipv6PrefixCount", "1")
		p, err := netip.ParsePrefix(value(text, "item"))
		if status != 200 || err != nil || p.Bits() != 80 || seen[p] || !netip.MustParsePrefix("2600:1f18:1:ab01::/64").Contains(p.Addr()) || p.Contains(netip.MustParseAddr("2600:1f18:1:ab01::11")) {
			t.Fatalf("assigned: %d %s: %v", status, text, err)
		}
		seen[p] = true
		if _, described := ask(t, s, "DescribeNetworkInterfaces", "NetworkInterfaceId.1", of("i-1").ID); !strings.Contains(described, "<ipv6Prefix>"+p.String()+"</ipv6Prefix>") {
			t.Errorf("not described: %s", described)
		}
	}
	_, far := ask(t, s, "CreateNetworkInterface", "SubnetId", "subnet-2")
	full := of("i-nano").ID
	if status, text := assign(full, "Ipv6PrefixCount", "2"); status != 200 {
		t.Fatal(text)
	}
	for _, x := range []struct {
		code, eni string
		more      []string
	}{
		{"InvalidNetworkInterfaceID.NotFound", "eni-9", []string{"Ipv6PrefixCount", "1"}},
		{"MissingParameter", of("i-1").ID, nil},
		{"UnsupportedOperation", of("i-1").ID, []string{"Ipv6AddressCount", "1"}},
		{"InvalidParameterValue", value(far, "networkInterfaceId"), []string{"Ipv6PrefixCount", "1"}},
		{"UnsupportedOperation", of("i-old").ID, []string{"Ipv6PrefixCount", "1"}},
		{"InvalidParameterCombination", of("i-xen").ID, []string{"Ipv6PrefixCount", "1"}},
		{"PrivateIpAddressLimitExceeded", full, []string{"Ipv6PrefixCount", "1"}},
	} {
		before := fmt.Sprint(c.Interfaces())
		if status, text := assign(x.eni, x.more...); status < 400 || value(text, "Code") != x.code {
			t.Errorf("%s %v: %d %s, not %s", x.eni, x.more, status, text, x.code)
		}
		if after := fmt.Sprint(c.Interfaces()); after != before {
			t.Errorf("%s %v was refused, and something has changed", x.eni, x.more)
		}
	}
	c.AddSubnetIPv6("subnet-2", netip.MustParsePrefix("2600:1f18:1:ab02::/79"))
	if status, text := assign(value(far, "networkInterfaceId"), "Ipv6PrefixCount", "2"); status < 400 || value(text, "Code") != "InsufficientCidrBlocks" {
		t.Errorf("of a subnet with one: %d %s", status, text)
	}

	// ---- what describes it --------------------------------------------------------------------
	for action, want := range map[string]string{
		"DescribeSubnets": "<ipv6CidrBlock>2600:1f18:1:ab01::/64</ipv6CidrBlock><ipv6CidrBlockState><state>associated</state>",
		"DescribeVpcs":    "<ipv6CidrBlock>2600:1f18:1:ab00::/56</ipv6CidrBlock>",
	} {
		if _, text := ask(t, s, action); !strings.Contains(text, want) {
			t.Errorf("%s does not say %s: %s", action, want, text)
		}
	}
	for kind, want := range map[string]string{"m1.small": "false", "m5.large": "true"} {
		if _, text := ask(t, s, "DescribeInstanceTypes", "InstanceType.1", kind); value(text, "ipv6Supported") != want {
			t.Errorf("%s: %s", kind, text)
		}
	}
	i := of("i-1")
	m := httptest.NewServer(c.Metadata("i-1"))
	t.Cleanup(m.Close)
	get := func(method, path, header, content string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, m.URL+"/latest/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(header, content)
		r, err := m.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	token := get(http.MethodPut, "api/token", ttlHeader, "60")
	for key, want := range map[string]string{
		"ipv6-prefix": i.IPv6Prefixes[0].String() + "\n" + i.IPv6Prefixes[1].String(), "ipv6s": "2600:1f18:1:ab01::11",
		"subnet-ipv6-cidr-blocks": "2600:1f18:1:ab01::/64", "vpc-ipv6-cidr-blocks": "2600:1f18:1:ab00::/56",
	} {
		if got := get(http.MethodGet, "meta-data/network/interfaces/macs/"+i.MAC+"/"+key, tokenHeader, token); got != want {
			t.Errorf("%s is %q, not %q", key, got, want)
		}
	}
}
