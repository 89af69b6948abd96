package azure

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	fake "github.com/hawser-net/hawser/internal/sandbox/cloud/azure"
)

// answering returns a resource group whose answers change goes over, and a provider that uses it.
func answering(t *testing.T, change func(r *http.Request, header http.Header, body []byte) []byte) (*group, *Provider) {
	t.Helper()
	g := newGroup(t).(*group)
	g.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		g.ServeHTTP(answer, r)
		body := change(r, answer.Header(), answer.Body.Bytes())
		for k, v := range answer.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(body)
	}))
	t.Cleanup(g.server.Close)
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
	return g, p
}

// start starts a machine that is changed by an action, and returns how to read its one interface.
func start(t *testing.T, g *group, p *Provider, action string) func() nodemanager.Interface {
	t.Helper()
	spec, err := g.Start("machine", action)
	if err != nil {
		t.Fatal(err)
	}
	return func() nodemanager.Interface {
		t.Helper()
		list, err := p.ReadInstance(t.Context(), spec.InstanceID)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		return list[0]
	}
}

// TestFullInterface has an interface be full with 254 addresses of pods, for one is IPv6: nothing
// is decided to be asked for, and who asks all the same changes nothing and is refused.
func TestFullInterface(t *testing.T) {
	t.Parallel()
	for _, action := range []string{putNIC, putVM} {
		g, p := answering(t, func(_ *http.Request, _ http.Header, body []byte) []byte {
			return bytes.ReplaceAll(body, []byte(`"100.64.0.9","privateIPAllocationMethod":"Dynamic","privateIPAddressVersion":"IPv4"`),
				[]byte(`"fd00::9","privateIPAllocationMethod":"Dynamic","privateIPAddressVersion":"IPv6"`))
		})
		one := start(t, g, p, action)
		if _, err := p.Assign(t.Context(), nodemanager.Step{Interface: one(), Addresses: maxAddresses}); err != nil {
			t.Fatal(err)
		}
		i, calls := one(), g.Calls()[action]
		if len(i.Held) != 254 || i.Other != 1 || calls != 1 {
			t.Fatalf("%s: %d addresses and %d others after %d changes", action, len(i.Held), i.Other, calls)
		}
		v := &nodemanager.View{PreAllocate: 300, Attached: []nodemanager.Interface{i}, Subnets: map[string]nodemanager.Subnet{i.Subnet: {ID: i.Subnet, Free: 100}}}
		p.Describe(&v2.CiliumNode{}, nil, v)
		if d := nodemanager.Decide(v); d.Step.Call != nodemanager.Nothing || !d.AtCapacity {
			t.Errorf("%s: %s %d", action, d.Step.Call, d.Step.Addresses)
		}
		units, err := p.Assign(t.Context(), nodemanager.Step{Interface: i, Addresses: 1})
		var e *nodemanager.Error
		if !errors.As(err, &e) || !strings.Contains(e.Text, "holds no more than 256 addresses") {
			t.Errorf("%s: %v, %v", action, units, err)
		}
		if n := g.Calls()[action]; n != calls {
			t.Errorf("%s: changed %d times more", action, n-calls)
		}
	}
}

// TestOtherConfigurations counts what of an interface takes a place and is nothing for pods.
func TestOtherConfigurations(t *testing.T) {
	t.Parallel()
	n := nic{ID: "n", Name: "n"}
	n.Properties.Machine = &reference{ID: "m"}
	for _, c := range []struct {
		name, address, version string
		primary                bool
	}{
		{"ipconfig1", "10.0.0.4", "IPv4", true},
		{"six", "fd00::4", "IPv6", false},
		{"theirs", "", "IPv4", false}, // has no address yet
		{ownConfig + "a", "10.0.0.5", "IPv4", false},
		{ownConfig + "b", "", "IPv4", false}, // goes with the next change
	} {
		x := ipConfig{Name: c.name}
		x.Properties.Address, x.Properties.Version, x.Properties.Primary = c.address, c.version, c.primary
		n.Properties.Configs = append(n.Properties.Configs, x)
	}
	list, err := interfaces([]nic{n})
	if err != nil || len(list) != 1 || len(list[0].Held) != 1 || list[0].Other != 2 {
		t.Fatalf("%+v (%v)", list, err)
	}
	n.Properties.Configs[0].Properties.Address = "" // a primary address has its place anyway
	if list, err = interfaces([]nic{n}); err != nil || list[0].Primary.IsValid() || list[0].Other != 2 {
		t.Fatalf("%+v (%v)", list, err)
	}
}

// isOperation reports whether a request asks what has become of a change.
func isOperation(r *http.Request) bool { return strings.Contains(r.URL.Path, "/operations/") }

// TestEndlessOperation has a change never end, and be asked about once a day: whoever waits for it
// is known so soon.
func TestEndlessOperation(t *testing.T) {
	t.Parallel()
	for _, action := range []string{putNIC, putVM} {
		g, p := answering(t, func(r *http.Request, h http.Header, body []byte) []byte {
			if !isOperation(r) {
				return body
			}
			h.Set("Retry-After", "86400")
			return []byte(`{"status":"InProgress"}`)
		})
		p.longest = 300 * time.Millisecond
		_, err := p.Assign(t.Context(), nodemanager.Step{Interface: start(t, g, p, action)(), Addresses: 1})
		var e *nodemanager.Error
		if !errors.As(err, &e) || !strings.Contains(e.Text, "has not ended within 300ms") {
			t.Errorf("%s: %v", action, err)
		}
	}

	// ---- who asked does not want it any more --------------------------------------------------
	g, p := answering(t, func(r *http.Request, _ http.Header, body []byte) []byte {
		if isOperation(r) {
			return []byte(`{"status":"InProgress"}`)
		}
		return body
	})
	i := start(t, g, p, putNIC)()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := p.Assign(ctx, nodemanager.Step{Interface: i, Addresses: 1})
	if err == nil || strings.Contains(err.Error(), "has not ended") {
		t.Errorf("another's end: %v", err)
	}
}

// TestLongPause has the cloud want to be asked again in a day, and the change end at once: the
// pause is bounded.
func TestLongPause(t *testing.T) {
	t.Parallel()
	g, p := answering(t, func(r *http.Request, h http.Header, body []byte) []byte {
		if isOperation(r) || r.Method == http.MethodPut {
			h.Set("Retry-After", "86400")
		}
		return body
	})
	one := start(t, g, p, putNIC)
	if units, err := p.Assign(t.Context(), nodemanager.Step{Interface: one(), Addresses: 2}); err != nil || len(units) != 2 {
		t.Errorf("%v, %v", units, err)
	}
}

// TestCanceled has the last change of an interface and of its machine have been canceled: this is
// an end as another, and they can be changed again.
func TestCanceled(t *testing.T) {
	t.Parallel()
	for _, action := range []string{putNIC, putVM} {
		g, p := answering(t, func(r *http.Request, _ http.Header, body []byte) []byte {
			if r.Method != http.MethodGet || isOperation(r) {
				return body
			}
			return bytes.ReplaceAll(body, []byte(`"provisioningState":"Succeeded"`), []byte(`"provisioningState":"Canceled"`))
		})
		one := start(t, g, p, action)
		if units, err := p.Assign(t.Context(), nodemanager.Step{Interface: one(), Addresses: 2}); err != nil || len(units) != 2 {
			t.Errorf("%s: %v, %v", action, units, err)
		}
	}
}

// TestInterfaceGone has an interface be detached and deleted after its machine was read: this is no
// answer, where the end of the machine is one.
func TestInterfaceGone(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		action, gone string
		fails        bool
	}{
		{putNIC, "networkInterfaces/read", true}, {putNIC, "virtualMachines/read", false},
		{putVM, "virtualMachineScaleSets/virtualMachines/networkInterfaces/read", false},
	} {
		g, p := answering(t, func(_ *http.Request, _ http.Header, body []byte) []byte { return body })
		one := start(t, g, p, x.action)
		i := one()
		g.Script(func(action string) *fake.Fault {
			if action == x.gone {
				return &fake.Fault{Code: "ResourceNotFound", Status: http.StatusNotFound}
			}
			return nil
		})
		list, err := p.ReadInstance(t.Context(), i.Instance)
		if len(list) > 0 || (err != nil) != x.fails || g.Calls()[x.gone] < 2 {
			t.Errorf("%s: %v, %v, %v", x.gone, list, err, g.Calls())
		}
	}
}
