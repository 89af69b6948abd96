package aws

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

func newServer(t *testing.T) (*Cloud, *httptest.Server) {
	c := New()
	c.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"))
	c.AddSubnet("subnet-1", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/27"), map[string]string{"k": "v"})
	c.AddSubnet("subnet-2", "vpc-1", "eu-test-1b", netip.MustParsePrefix("10.0.1.0/24"), nil)
	c.AddGroup("sg-1", "vpc-1", nil)
	if _, err := c.AddInstance("i-1", "t3.small", "subnet-1", []string{"sg-1"}, nil); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	return c, s
}

// ask makes a call; pairs are its parameters.
func ask(t *testing.T, s *httptest.Server, action string, pairs ...string) (int, string) {
	t.Helper()
	form := url.Values{"Action": {action}, "Version": {"2016-11-15"}}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 none")
	r, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

func value(text, tag string) string {
	_, rest, _ := strings.Cut(text, "<"+tag+">")
	v, _, _ := strings.Cut(rest, "</"+tag+">")
	return v
}

// TestCloud has each limit of EC2 refused with its code, and nothing changed by what is refused.
func TestCloud(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	_, made := ask(t, s, "CreateNetworkInterface", "SubnetId", "subnet-1", "SecurityGroupId.1", "sg-1", "SecondaryPrivateIpAddressCount", "2", "ClientToken", "once")
	eni := value(made, "networkInterfaceId")
	if _, again := ask(t, s, "CreateNetworkInterface", "SubnetId", "subnet-1", "ClientToken", "once"); value(again, "networkInterfaceId") != eni {
		t.Errorf("the same token made another interface: %s", again)
	}
	first := c.Interfaces()[0].ID
	_, far := ask(t, s, "CreateNetworkInterface", "SubnetId", "subnet-2")
	for _, call := range []struct {
		code   string
		action string
		pairs  []string
	}{
		{"InvalidSubnetID.NotFound", "CreateNetworkInterface", []string{"SubnetId", "subnet-9"}},
		{"InvalidGroup.NotFound", "CreateNetworkInterface", []string{"SubnetId", "subnet-1", "SecurityGroupId.1", "sg-9"}},
		{"InsufficientFreeAddressesInSubnet", "CreateNetworkInterface", []string{"SubnetId", "subnet-1", "SecondaryPrivateIpAddressCount", "100"}},
		{"InsufficientCidrBlocks", "CreateNetworkInterface", []string{"SubnetId", "subnet-1", "Ipv4PrefixCount", "1"}},
		{"InvalidParameterValue", "AttachNetworkInterface", []string{"NetworkInterfaceId", eni, "InstanceId", "i-1", "DeviceIndex", "0"}},
		{"InvalidInstanceID.NotFound", "AttachNetworkInterface", []string{"NetworkInterfaceId", eni, "InstanceId", "i-9", "DeviceIndex", "1"}},
		{"InvalidParameterCombination", "AttachNetworkInterface", []string{"NetworkInterfaceId", value(far, "networkInterfaceId"), "InstanceId", "i-1", "DeviceIndex", "1"}},
		{"PrivateIpAddressLimitExceeded", "AssignPrivateIpAddresses", []string{"NetworkInterfaceId", first, "SecondaryPrivateIpAddressCount", "4"}},
		{"InvalidParameterValue", "UnassignPrivateIpAddresses", []string{"NetworkInterfaceId", eni, "PrivateIpAddress.1", "10.0.0.30"}},
		{"InvalidParameterValue", "DeleteNetworkInterface", []string{"NetworkInterfaceId", first}},
		{"InvalidNetworkInterfaceID.NotFound", "DeleteNetworkInterface", []string{"NetworkInterfaceId", "eni-9"}},
		{"InvalidAttachmentID.NotFound", "ModifyNetworkInterfaceAttribute", []string{"NetworkInterfaceId", eni, "Attachment.AttachmentId", "x"}},
		{"InvalidAction", "TerminateEverything", nil},
		{"InvalidParameterValue", "DescribeSubnets", []string{"Filter.1.Name", "nonsense", "Filter.1.Value.1", "x"}},
		{"InvalidInstanceType", "DescribeInstanceTypes", []string{"InstanceType.1", "z1.none"}},
	} {
		before := fmt.Sprint(c.Interfaces())
		if status, text := ask(t, s, call.action, call.pairs...); status < 400 || value(text, "Code") != call.code {
			t.Errorf("%s %v: %d %s, not %s", call.action, call.pairs, status, text, call.code)
		}
		if after := fmt.Sprint(c.Interfaces()); after != before {
			t.Errorf("%s %v was refused, and\n%s\nbecame\n%s", call.action, call.pairs, before, after)
		}
	}
	if status, text := ask(t, s, "AttachNetworkInterface", "NetworkInterfaceId", eni, "InstanceId", "i-1", "DeviceIndex", "1"); status != 200 {
		t.Errorf("attach: %s", text)
	}
	if status, text := ask(t, s, "AttachNetworkInterface", "NetworkInterfaceId", eni, "InstanceId", "i-1", "DeviceIndex", "2"); status != 400 || value(text, "Code") != "InvalidNetworkInterface.InUse" {
		t.Errorf("attached twice: %s", text)
	}
	c.Quota(len(c.Interfaces()))
	if _, text := ask(t, s, "CreateNetworkInterface", "SubnetId", "subnet-1"); value(text, "Code") != "NetworkInterfaceLimitExceeded" {
		t.Errorf("over the quota: %s", text)
	}

	// ---- from the past, in pages, too often ---------------------------------------------------
	c.Lag(time.Hour)
	if status, text := ask(t, s, "UnassignPrivateIpAddresses", "NetworkInterfaceId", eni, "PrivateIpAddress.1", c.Interfaces()[1].Addresses[0].String()); status != 200 {
		t.Errorf("unassign: %s", text)
	}
	if _, text := ask(t, s, "DescribeNetworkInterfaces", "NetworkInterfaceId.1", eni); strings.Count(text, "<primary>false") != 2 {
		t.Errorf("the past: %s", text)
	}
	c.Lag(0)
	if _, text := ask(t, s, "DescribeNetworkInterfaces", "NetworkInterfaceId.1", eni); strings.Count(text, "<primary>false") != 1 {
		t.Errorf("the present: %s", text)
	}
	c.Pages(1)
	_, text := ask(t, s, "DescribeSubnets")
	_, rest := ask(t, s, "DescribeSubnets", "NextToken", value(text, "nextToken"))
	if value(text, "subnetId") != "subnet-1" || value(rest, "subnetId") != "subnet-2" || value(rest, "nextToken") != "" {
		t.Errorf("pages:\n%s\n%s", text, rest)
	}
	c.Throttle(0.001, 1)
	ask(t, s, "DescribeSubnets")
	if status, text := ask(t, s, "DescribeSubnets"); status != http.StatusServiceUnavailable || value(text, "Code") != "RequestLimitExceeded" {
		t.Errorf("throttled: %d %s", status, text)
	}
}

// TestMetadata reads as an instance does: with a token only.
func TestMetadata(t *testing.T) {
	t.Parallel()
	c, _ := newServer(t)
	s := httptest.NewServer(c.Metadata("i-1"))
	t.Cleanup(s.Close)
	do := func(method, path string, header ...string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		r, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(text)
	}
	if status, _ := do(http.MethodGet, "/latest/meta-data/instance-id"); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
	if status, _ := do(http.MethodPut, "/latest/api/token", ttlHeader, "60", "X-Forwarded-For", "10.0.0.1"); status != http.StatusBadRequest {
		t.Errorf("through a proxy: %d", status)
	}
	_, token := do(http.MethodPut, "/latest/api/token", ttlHeader, "60")
	mac := c.Interfaces()[0].MAC
	for path, want := range map[string]string{
		"instance-id": "i-1", "instance-type": "t3.small", "placement/availability-zone": "eu-test-1a", "mac": mac,
		"network/interfaces/macs/": mac + "/", "network/interfaces/macs/" + mac + "/vpc-id": "vpc-1",
	} {
		if _, got := do(http.MethodGet, "/latest/meta-data/"+path, tokenHeader, token); got != want {
			t.Errorf("%s: %q, not %q", path, got, want)
		}
	}
	if status, _ := do(http.MethodGet, "/latest/meta-data/nothing", tokenHeader, token); status != http.StatusNotFound {
		t.Errorf("what is not there: %d", status)
	}
}
