package aws

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestElasticIPs has addresses be associated, moved and left alone as EC2 does, refused with its
// codes, and lead nowhere when what they led to ends.
func TestElasticIPs(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	first := c.Interfaces()[0]
	_, made := ask(t, s, "CreateNetworkInterface", "SubnetId", "subnet-1", "SecondaryPrivateIpAddressCount", "1")
	eni := value(made, "networkInterfaceId")
	secondary := c.Interfaces()[1].Addresses[0].String()
	var ids []string
	for _, tags := range []map[string]string{{"for": "edge", "empty": ""}, {"for": "edge"}, nil} {
		x, err := c.AddElasticIP(tags)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, x.ID)
	}
	leads := func(want ...string) {
		t.Helper()
		for k, x := range c.ElasticIPs() {
			if x.Interface != want[k] || (x.Association == "") != (want[k] == "") {
				t.Errorf("%s leads to %q, not %q", x.ID, x.Interface, want[k])
			}
		}
	}
	associate := func(code, id string, pairs ...string) string {
		t.Helper()
		status, text := ask(t, s, "AssociateAddress", append([]string{"AllocationId", id}, pairs...)...)
		if value(text, "Code") != code || (status == http.StatusOK) != (code == "") {
			t.Errorf("%s %v: %d %s, not %q", id, pairs, status, text, code)
		}
		return value(text, "associationId")
	}
	// ---- filters -------------------------------------------------------------------------------
	for _, x := range []struct {
		want  int
		pairs []string
	}{
		{3, nil},
		{2, []string{"Filter.1.Name", "tag:for", "Filter.1.Value.1", "edge"}},
		{1, []string{"Filter.1.Name", "tag:for", "Filter.1.Value.1", "edge", "Filter.2.Name", "tag:empty", "Filter.2.Value.1", ""}},
		{2, []string{"Filter.1.Name", "tag:for", "Filter.1.Value.1", "*"}},
		{0, []string{"Filter.1.Name", "tag:for", "Filter.1.Value.1", `\*`}},
		{1, []string{"AllocationId.1", ids[2]}},
	} {
		if _, text := ask(t, s, "DescribeAddresses", x.pairs...); strings.Count(text, "<allocationId>") != x.want {
			t.Errorf("%v: want %d: %s", x.pairs, x.want, text)
		}
	}
	if _, text := ask(t, s, "DescribeAddresses", "AllocationId.1", "eipalloc-9"); value(text, "Code") != "InvalidAllocationID.NotFound" {
		t.Errorf("one that there is not: %s", text)
	}

	// ---- association ---------------------------------------------------------------------------
	associate("MissingParameter", ids[0])
	associate("InvalidAllocationID.NotFound", "eipalloc-9", "NetworkInterfaceId", eni)
	associate("InvalidNetworkInterfaceID.NotFound", ids[0], "NetworkInterfaceId", "eni-9")
	associate("InvalidParameterValue", ids[0], "NetworkInterfaceId", eni, "PrivateIpAddress", first.Primary.String())
	leads("", "", "")
	once := associate("", ids[0], "NetworkInterfaceId", first.ID, "AllowReassociation", "false")
	if again := associate("", ids[0], "NetworkInterfaceId", first.ID, "AllowReassociation", "false"); again != once || once == "" {
		t.Errorf("the same again is %q, and was %q", again, once)
	}
	associate("Resource.AlreadyAssociated", ids[0], "NetworkInterfaceId", eni, "AllowReassociation", "false")
	leads(first.ID, "", "")
	if _, text := ask(t, s, "DescribeNetworkInterfaces", "NetworkInterfaceId.1", first.ID); value(text, "allocationId") != ids[0] || value(text, "publicIp") != c.ElasticIPs()[0].IP.String() {
		t.Errorf("the interface does not show it: %s", text)
	}
	if _, text := ask(t, s, "DescribeAddresses", "AllocationId.1", ids[0]); value(text, "networkInterfaceId") != first.ID || value(text, "privateIpAddress") != first.Primary.String() || value(text, "instanceId") != "i-1" {
		t.Errorf("the address does not show it: %s", text)
	}
	associate("", ids[1], "NetworkInterfaceId", first.ID, "AllowReassociation", "false") // the one before makes way
	leads("", first.ID, "")
	associate("", ids[1], "NetworkInterfaceId", eni, "PrivateIpAddress", secondary) // moved
	leads("", eni, "")
	associate("", ids[0], "NetworkInterfaceId", eni)
	leads(eni, eni, "")

	// ---- what is no more; others; the cloud's own -----------------------------------------------
	if status, text := ask(t, s, "UnassignPrivateIpAddresses", "NetworkInterfaceId", eni, "PrivateIpAddress.1", secondary); status != 200 {
		t.Error(text)
	}
	leads(eni, "", "")
	ask(t, s, "DeleteNetworkInterface", "NetworkInterfaceId", eni)
	leads("", "", "")
	c.GivePublic("i-1", netip.MustParseAddr("198.51.100.1"))
	if _, text := ask(t, s, "DescribeNetworkInterfaces"); value(text, "publicIp") != "198.51.100.1" || value(text, "ipOwnerId") != "amazon" || strings.Contains(text, "allocationId") {
		t.Errorf("an address of the cloud's own: %s", text)
	}
	c.Lag(time.Hour)
	associate("", ids[0], "NetworkInterfaceId", first.ID)
	c.Occupy(ids[1])
	associate("Resource.AlreadyAssociated", ids[1], "NetworkInterfaceId", first.ID, "AllowReassociation", "false")
	if _, text := ask(t, s, "DescribeAddresses"); strings.Contains(text, "associationId") {
		t.Errorf("the past: %s", text)
	}
	if _, text := ask(t, s, "DescribeNetworkInterfaces"); strings.Contains(text, "allocationId") {
		t.Errorf("the past: %s", text)
	}
	c.Terminate("i-1")
	leads("", elsewhere, "")
	c.Vacate(ids[1])
	c.Release(ids[2])
	leads("", "")
	if v := c.View(); len(v.StaticIPs) != 2 || fmt.Sprint(v.StaticIPs[0].Tags) != "map[empty: for:edge]" {
		t.Errorf("people see %+v", v.StaticIPs)
	}
	for len(c.ElasticIPs()) < 255 {
		if _, err := c.AddElasticIP(nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.AddElasticIP(nil); err == nil {
		t.Error("there are more addresses than there are")
	}
}
