package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/prometheus/client_golang/prometheus"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	fake "github.com/hawser-net/hawser/internal/sandbox/cloud/azure"
	"github.com/hawser-net/hawser/internal/testenv/nodemanagertest"
)

// group is a resource group in which every second machine is a scale set's.
type group struct {
	*fake.Cloud
	server *httptest.Server
	subnet string
	count  int
}

func newGroup(t *testing.T) nodemanagertest.Cloud {
	g := &group{Cloud: fake.New("sub-1", "Nodes")}
	g.AddNetwork("net", netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"))
	g.subnet = g.AddSubnet("pods", "net", netip.MustParsePrefix("100.64.0.0/23"))
	g.Takes(20 * time.Millisecond)
	g.server = httptest.NewTLSServer(g.Cloud)
	t.Cleanup(g.server.Close)
	return g
}

// token is a credential.
type token struct{}

func (token) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: fake.Token, ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func (g *group) provider(b *nodemanager.Budget) (*Provider, error) {
	cfg := Defaults()
	cfg.Subscription, cfg.ResourceGroup, cfg.ResourceManager = "sub-1", "nodes", g.server.URL
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p, err := newProvider(cfg, b, token{}, g.server.Client())
	if err == nil {
		p.poll = 10 * time.Millisecond
	}
	return p, err
}

// Provider implements [nodemanagertest.Cloud].
func (g *group) Provider(_ context.Context, b *nodemanager.Budget) (nodemanager.Provider, map[string]string, error) {
	p, err := g.provider(b)
	return p, nil, err
}

// Disturbed implements [nodemanagertest.Cloud].
func (g *group) Disturbed() *cloud.Disturbances { return &g.Disturbances }

// Start implements [nodemanagertest.Cloud].
func (g *group) Start(name, action string) (v2.NodeSpec, error) {
	g.count++
	set := ""
	if action == putVM || action != putNIC && g.count%2 == 0 {
		set = "Workers"
	}
	id, err := g.AddMachine(set, name, g.subnet)
	return v2.NodeSpec{InstanceID: strings.ToLower(id)}, err
}

// Exhaust implements [nodemanagertest.Cloud].
func (g *group) Exhaust(free int) { g.Cloud.Exhaust(g.subnet, free) }

// Assigned implements [nodemanagertest.Cloud].
func (g *group) Assigned(instance string) (map[string]string, error) {
	out := map[string]string{}
	for _, i := range g.Interfaces() {
		if !strings.EqualFold(i.Machine, instance) {
			continue
		}
		if !i.Accelerated {
			return nil, fmt.Errorf("%s has lost a property", i.ID)
		}
		for _, x := range i.Configs {
			if !x.Primary {
				out[x.Address.String()] = strings.ToLower(i.ID)
			}
		}
	}
	return out, nil
}

// CheckStatus implements [nodemanagertest.Cloud].
func (g *group) CheckStatus(n *v2.CiliumNode) string {
	for _, i := range g.Interfaces() {
		if !strings.EqualFold(i.Machine, n.Spec.InstanceID) {
			continue
		}
		for _, x := range n.Status.Azure.Interfaces {
			if strings.EqualFold(x.ID, i.ID) && len(x.Addresses) == len(i.Configs)-1 && x.IP == i.Configs[0].Address.String() && x.CIDR == "100.64.0.0/23" && x.Gateway == "100.64.0.1" &&
				x.Name == i.Name && strings.HasPrefix(x.MAC, "00:22:48:") && x.State == "succeeded" && x.SecurityGroup == i.Group {
				return ""
			}
		}
	}
	return fmt.Sprintf("status of the interfaces: %+v", n.Status.Azure.Interfaces)
}

// Loose implements [nodemanagertest.Cloud].
func (g *group) Loose() []string { return nil }

const (
	putNIC = "networkInterfaces/write"
	putVM  = "virtualMachineScaleSets/virtualMachines/write"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	suite().Run(t)
}

func TestFaultPoints(t *testing.T) {
	t.Parallel()
	suite().FaultPoints(t)
}

func suite() nodemanagertest.Suite {
	denied := fake.Fault{Code: "AuthorizationFailed", Status: http.StatusForbidden,
		Message: "The client '0x1234' does not have authorization to perform action 'Microsoft.Network/networkInterfaces/write' over scope '/subscriptions/sub-1/0x1234'."}
	linked := fake.Fault{Code: "LinkedAuthorizationFailed", Status: http.StatusForbidden,
		Message: "The client has permission to perform action 'Microsoft.Compute/virtualMachineScaleSets/virtualMachines/write' on scope '/0x1234'; however, it does not have permission to perform action(s) 'Microsoft.Network/virtualNetworks/subnets/join/action' on the linked scope(s) '/0x1234'."}
	return nodemanagertest.Suite{
		New: newGroup, Changes: []string{putNIC, putVM},
		Dry:    "no free address in subnet /subscriptions/sub-1/resourcegroups/nodes/providers/microsoft.network/virtualnetworks/net/subnets/pods (100.64.0.0/23)",
		Unread: nodemanagertest.Refusal{Action: "virtualNetworks/read", Fault: fake.Fault{Code: "ExpiredAuthenticationToken", Status: http.StatusUnauthorized}, Message: "does not accept the operator's credentials (ExpiredAuthenticationToken)"},
		Refusals: []nodemanagertest.Refusal{
			{Action: putNIC, Fault: denied, Message: "permission Microsoft.Network/networkInterfaces/write is missing"},
			{Action: putVM, Fault: linked, Message: "permission Microsoft.Network/virtualNetworks/subnets/join/action is missing"},
			{Action: putNIC, Fault: fake.Fault{Code: "PreconditionFailed", Status: http.StatusPreconditionFailed, Message: "0x1234"}, Message: "was changed concurrently"},
			{Action: putVM, Fault: fake.Fault{Code: "AnotherOperationInProgress", Status: http.StatusTooManyRequests}, Message: "something else is changing"},
			{Action: putNIC, Fault: fake.Fault{Code: "TooManyRequests", Status: http.StatusTooManyRequests}, Message: "asked more often than the subscription may"},
			{Action: putVM, Fault: fake.Fault{Drop: true}, Message: "does not answer a request for Microsoft.Compute/virtualMachineScaleSets/virtualMachines/write"},
			{Action: putVM, Fault: fake.Fault{Code: "ScopeLocked", Status: http.StatusConflict}, Message: "a lock keeps Azure from changing"},
		},
	}
}

// TestSecrets has calls fail in each way, and nothing that is reported, or written to the log, have
// the token in it; nor is it sent anywhere but to the endpoint, wherever lists and operations go
// on.
func TestSecrets(t *testing.T) {
	t.Parallel()
	g := newGroup(t).(*group)
	metrics, err := nodemanager.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	cfg := nodemanager.Defaults()
	cfg.QPS, cfg.Burst = 100, 100
	p, err := g.provider(nodemanager.NewBudget(cfg, metrics))
	if err != nil {
		t.Fatal(err)
	}
	check := func(how string) {
		_, err := p.Read(t.Context())
		if err == nil {
			t.Fatalf("%s: no error", how)
		}
		if text := fmt.Sprintf("%v %+v", err, errors.Unwrap(err)); strings.Contains(text, fake.Token) {
			t.Errorf("%s: %s", how, text)
		}
	}
	g.Script(func(string) *fake.Fault { return &fake.Fault{Drop: true} })
	check("no answer")
	g.Script(func(string) *fake.Fault {
		return &fake.Fault{Code: "InvalidAuthenticationToken", Status: http.StatusUnauthorized}
	})
	check("refused")
	for at, same := range map[string]bool{
		g.server.URL + "/subscriptions/x?api-version=1": true, "https://elsewhere.example/x?api-version=1": false, strings.Replace(g.server.URL, "https", "http", 1) + "/x?api-version=1": false,
		"https://user@" + strings.TrimPrefix(g.server.URL, "https://") + ".example/x?a=1": false,
	} {
		if p.same(at) != same {
			t.Errorf("the token would be sent to %s: %t", at, !same)
		}
	}
}

// TestForeignInstance has CiliumNodes name what is no machine of the resource group as their
// instance: nothing is asked for it, here or elsewhere, with the operator's token.
func TestForeignInstance(t *testing.T) {
	t.Parallel()
	g := newGroup(t).(*group)
	var asked atomic.Int32
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer elsewhere.Close()
	metrics, err := nodemanager.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p, err := g.provider(nodemanager.NewBudget(nodemanager.Defaults(), metrics))
	if err != nil {
		t.Fatal(err)
	}
	const own = "/subscriptions/sub-1/resourcegroups/nodes/providers/microsoft.compute/virtualmachines/"
	at := strings.TrimPrefix(elsewhere.URL, "https://")
	for _, id := range []string{
		elsewhere.URL + "/x?api-version=1", "@" + at + "/x", "." + at, own + "../../../x", own + "x/../y", own + "x?y=z", own + "x#y", own + "x%2fy", own + "x/y", own,
		"/subscriptions/sub-2/resourcegroups/nodes/providers/microsoft.compute/virtualmachines/x", "",
	} {
		if list, err := p.ReadInstance(t.Context(), id); err != nil || len(list) > 0 {
			t.Errorf("%q: %v, %v", id, list, err)
		}
		if id == "" || strings.HasPrefix(id, "/") {
			continue
		}
		if err := p.get(t.Context(), readVM, id, computeVersion, nil); err == nil {
			t.Errorf("%q was asked for", id)
		}
	}
	if n := len(g.Calls()); n > 0 || asked.Load() > 0 {
		t.Errorf("asked: %v, elsewhere %d times", g.Calls(), asked.Load())
	}
	if list, err := p.ReadInstance(t.Context(), own+"gone"); err != nil || len(list) > 0 || len(g.Calls()) != 1 {
		t.Errorf("a machine that is gone: %v, %v, %v", list, err, g.Calls())
	}
}

// TestScaleSetFull has the model of a scale set's instance be accepted and then fail, for the
// subnet is full: what stays in the model is not asked for again. Others change the interface
// meanwhile.
func TestScaleSetFull(t *testing.T) {
	t.Parallel()
	g := newGroup(t).(*group)
	metrics, err := nodemanager.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	cfg := nodemanager.Defaults()
	cfg.QPS, cfg.Burst = 1000, 1000
	p, err := g.provider(nodemanager.NewBudget(cfg, metrics))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := g.Start("full", putVM)
	if err != nil {
		t.Fatal(err)
	}
	one := func() nodemanager.Interface {
		t.Helper()
		list, err := p.ReadInstance(t.Context(), spec.InstanceID)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		return list[0]
	}
	g.Exhaust(2)
	_, err = p.Assign(t.Context(), nodemanager.Step{Interface: one(), Addresses: 5})
	var e *nodemanager.Error
	if !errors.As(err, &e) || e.Kind != nodemanager.Exhausted {
		t.Errorf("a full subnet: %v", err)
	}
	if i := one(); len(i.Held) > 0 {
		t.Errorf("addresses of what has failed: %v", i.Held)
	}
	g.Exhaust(100000)
	g.Touch(one().ID)
	units, err := p.Assign(t.Context(), nodemanager.Step{Interface: one(), Addresses: 3})
	if i := one(); err != nil || len(units) != 3 || len(i.Held) != 3 {
		t.Errorf("assigned %v (%v), and the interface has %v", units, err, i.Held)
	}
	if err := p.Unassign(t.Context(), nodemanager.Step{Interface: one(), Units: units[:2]}); err != nil {
		t.Error(err)
	}
	if i := one(); len(i.Held) != 1 || i.Held[0] != units[2] {
		t.Errorf("the interface has %v, not %v", i.Held, units[2])
	}

	// ---- another user is quicker ---------------------------------------------------------------
	g.Script(func(action string) *fake.Fault {
		if action == putVM {
			g.Touch(spec.InstanceID + "/networkInterfaces/nic0")
		}
		return nil
	})
	if _, err = p.Assign(t.Context(), nodemanager.Step{Interface: one(), Addresses: 1}); nodemanager.CodeOf(err) != "PreconditionFailed" {
		t.Errorf("a model that another has changed: %v", err)
	}
	if i := one(); len(i.Held) != 1 {
		t.Errorf("it was changed nevertheless: %v", i.Held)
	}
}
