package alibaba

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aliyun/alibaba-cloud-sdk-go/sdk/auth/credentials"
	"github.com/prometheus/client_golang/prometheus"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	fake "github.com/hawser-net/hawser/internal/sandbox/cloud/alibaba"
	"github.com/hawser-net/hawser/internal/testenv/nodemanagertest"
)

// region is one with a VPC of two zones.
type region struct {
	*fake.Cloud
	server *httptest.Server
}

func newRegion(t *testing.T) *region {
	c := fake.New()
	c.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"))
	c.AddVSwitch("vsw-nodes", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	c.AddVSwitch("vsw-pods", "vpc-1", "eu-test-1a", netip.MustParsePrefix("100.64.0.0/24"), map[string]string{"for": "pods"})
	c.AddVSwitch("vsw-far", "vpc-1", "eu-test-1b", netip.MustParsePrefix("10.0.1.0/24"), map[string]string{"for": "pods"})
	c.AddGroup("sg-nodes", "vpc-1", nil)
	c.AddGroup("sg-pods", "vpc-1", map[string]string{"for": "pods"})
	c.AddGroup("sg-other", "vpc-1", map[string]string{"for": "none"})
	c.Takes(20 * time.Millisecond)
	r := &region{c, httptest.NewTLSServer(c)}
	t.Cleanup(r.server.Close)
	return r
}

func (r *region) provider(b *nodemanager.Budget) (*Provider, error) {
	cfg := Config{Region: "eu-test-1", ClusterName: "test", Endpoint: r.server.URL}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := newProvider(cfg, b, credentials.NewStaticSTSCredentialsProvider("secret-id", "secret-key", "secret-token"), r.server.Client())
	p.poll = 10 * time.Millisecond
	return p, nil
}

// Provider implements [nodemanagertest.Cloud].
func (r *region) Provider(_ context.Context, b *nodemanager.Budget) (nodemanager.Provider, map[string]string, error) {
	p, err := r.provider(b)
	if err != nil {
		return nil, nil, err
	}
	return p, p.cfg.Collected(), nil
}

// Disturbed implements [nodemanagertest.Cloud].
func (r *region) Disturbed() *cloud.Disturbances { return &r.Disturbances }

// Start implements [nodemanagertest.Cloud].
func (r *region) Start(name, _ string) (s v2.NodeSpec, err error) {
	_, err = r.AddInstance("i-"+name, "ecs.g7.xlarge", "vsw-nodes", "sg-nodes")
	s.InstanceID, s.AlibabaCloud.InstanceType = "i-"+name, "ecs.g7.xlarge"
	s.AlibabaCloud.VSwitchTags, s.AlibabaCloud.SecurityGroupTags = map[string]string{"for": "pods"}, map[string]string{"for": "pods"}
	return s, err
}

// Exhaust implements [nodemanagertest.Cloud].
func (r *region) Exhaust(free int) { r.Cloud.Exhaust("vsw-pods", free) }

// Assigned implements [nodemanagertest.Cloud].
func (r *region) Assigned(instance string) (map[string]string, error) {
	out := map[string]string{}
	for _, i := range r.Interfaces() {
		if i.Instance == "" && i.Tags[nodemanager.InstanceTag] == instance {
			return nil, fmt.Errorf("%s is not attached", i.ID)
		}
		if i.Instance != instance {
			continue
		}
		if !i.Main && (!i.DeleteOnRelease || !slices.Equal(i.Groups, []string{"sg-pods"})) {
			return nil, fmt.Errorf("%s would outlive the instance, or has groups %v", i.ID, i.Groups)
		}
		for _, a := range i.Addresses {
			out[a.String()] = i.ID
		}
	}
	return out, nil
}

// CheckStatus implements [nodemanagertest.Cloud].
func (r *region) CheckStatus(n *v2.CiliumNode) string {
	at := map[string]bool{}
	for _, i := range r.Interfaces() {
		if i.Instance != n.Spec.InstanceID {
			continue
		}
		e := n.Status.AlibabaCloud.ENIs[i.ID]
		if len(e.PrivateIPSets) != 1+len(i.Addresses) || e.PrimaryIPAddress != i.Primary.String() || e.VPC.CIDR != "10.0.0.0/16" || i.Main != (e.Type == "Primary") || e.ZoneID != "eu-test-1a" ||
			!i.Main && e.VSwitch.CIDR != "100.64.0.0/24" || e.InstanceID != i.Instance {
			return fmt.Sprintf("status of %s: %+v", i.ID, e)
		}
		index := e.Tags[indexTag]
		if n, err := strconv.Atoi(index); at[index] || !i.Main && (err != nil || n < 1) {
			return fmt.Sprintf("place of %s: %q", i.ID, index)
		}
		at[index] = true
	}
	return ""
}

// Loose implements [nodemanagertest.Cloud].
func (r *region) Loose() (out []string) {
	for _, i := range r.Interfaces() {
		if i.Instance == "" {
			out = append(out, i.ID)
		}
	}
	return out
}

func TestConformance(t *testing.T) {
	t.Parallel()
	suite().Run(t)
}

func TestFaultPoints(t *testing.T) {
	t.Parallel()
	suite().FaultPoints(t)
}

func suite() nodemanagertest.Suite {
	return nodemanagertest.Suite{
		New:     func(t *testing.T) nodemanagertest.Cloud { return newRegion(t) },
		Changes: []string{"CreateNetworkInterface", "AttachNetworkInterface", "AssignPrivateIpAddresses", "UnassignPrivateIpAddresses"},
		Dry:     "no free address in subnet vsw-pods (100.64.0.0/24)",
		Unread:  nodemanagertest.Refusal{Action: "DescribeVSwitches", Fault: fake.Fault{Code: "Forbidden.RAM", Status: 403}, Message: "permission vpc:DescribeVSwitches is missing"},
		Refusals: []nodemanagertest.Refusal{
			{Action: "DescribeInstanceTypes", Fault: fake.Fault{Code: "Forbidden.RAM", Status: 403}, Message: "permission ecs:DescribeInstanceTypes is missing"},
			{Action: "CreateNetworkInterface", Fault: fake.Fault{Code: "Forbidden.RAM", Message: "0x1234", Status: 403}, Message: "permission ecs:CreateNetworkInterface is missing"},
			{Action: "CreateNetworkInterface", Fault: fake.Fault{Code: "Throttling.User"}, Message: "asked more often than the account may"},
			{Action: "AttachNetworkInterface", Fault: fake.Fault{Code: "EniPerInstanceLimitExceeded", Status: 403}, Message: "the instance holds no more network interfaces"},
			{Action: "CreateNetworkInterface", Fault: fake.Fault{Drop: true}, Message: "Alibaba Cloud does not answer CreateNetworkInterface"},
			{Action: "CreateNetworkInterface", Fault: fake.Fault{Code: "InvalidAccessKeyId.NotFound", Status: 404}, Message: "does not accept the operator's credentials (InvalidAccessKeyId.NotFound)"},
		},
	}
}

// TestSecrets has calls fail in each way, and nothing that is reported, or written to the log, have
// what requests are signed with in it: their URLs do.
func TestSecrets(t *testing.T) {
	t.Parallel()
	r := newRegion(t)
	metrics, err := nodemanager.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	cfg := nodemanager.Defaults()
	cfg.QPS, cfg.Burst = 100, 100
	p, err := r.provider(nodemanager.NewBudget(cfg, metrics))
	if err != nil {
		t.Fatal(err)
	}
	check := func(how string) {
		_, err := p.Read(t.Context())
		if err == nil {
			t.Fatalf("%s: no error", how)
		}
		for _, text := range []string{err.Error(), fmt.Sprintf("%+v %#v", errors.Unwrap(err), errors.Unwrap(err))} {
			if strings.Contains(text, "secret") || strings.Contains(text, "Signature=") {
				t.Errorf("%s: %s", how, text)
			}
		}
	}
	r.Script(func(string) *fake.Fault { return &fake.Fault{Drop: true} })
	check("no answer")
	r.Script(func(string) *fake.Fault {
		return &fake.Fault{Code: "SignatureDoesNotMatch", Message: "secret-id signed secret-token"}
	})
	check("refused")
	r.server.Close()
	check("no server")
}

// TestForeignInstance has CiliumNodes name what is no instance: the cloud is not asked.
func TestForeignInstance(t *testing.T) {
	t.Parallel()
	r := newRegion(t)
	metrics, err := nodemanager.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.provider(nodemanager.NewBudget(nodemanager.Defaults(), metrics))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start("a", ""); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"i-*", "i-?", "*", "i-", "", "i-a\n", "eni-a"} {
		if list, err := p.ReadInstance(t.Context(), id); err == nil || !strings.Contains(err.Error(), "is no instance ID of Alibaba Cloud") {
			t.Errorf("%q: %v, %v", id, list, err)
		}
	}
	if n := len(r.Calls()); n > 0 {
		t.Errorf("asked: %v", r.Calls())
	}
	if list, err := p.ReadInstance(t.Context(), "i-a"); err != nil || len(list) != 1 {
		t.Errorf("one's own: %v, %v", list, err)
	}
}
