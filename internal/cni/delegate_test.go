package cni

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv"
)

// delegating is a node whose agent leaves addresses to another plugin, and what calls of the plugin
// need to find the hostile one.
func delegating(t *testing.T) (f *fixture, env []string, calls string) {
	f = setUp(t)
	f.agent.config.IPAMMode = ipamModeDelegated
	f.agent.config.Addressing = rest.NodeAddressing{
		IPv4: rest.NodeAddressingElement{Enabled: true, IP: "10.1.0.1"}, IPv6: rest.NodeAddressingElement{Enabled: true, IP: "fd00:1::1"},
	}
	calls = filepath.Join(t.TempDir(), "calls")
	return f, []string{
		"CNI_PATH=" + testenv.HostileIPAM(t), "PATH=" + os.Getenv("PATH"), "HOSTILE_LOG=" + calls,
		`HOSTILE_IPS={"address":"10.1.0.9/24"},{"address":"fd00:1::9/64"}`,
	}, calls
}

var hostileConf = map[string]any{"ipam": map[string]any{"type": "hostile", "anything": []int{1}}, "capabilities": map[string]bool{"ips": true}}

func wantCalls(t *testing.T, when, file string, want ...string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(text)); got != strings.Join(want, "\n") {
		t.Errorf("%s: the IPAM plugin was called %q, want %q", when, got, want)
	}
	_ = os.Remove(file)
}

// TestDelegate: all commands go to the IPAM plugin of the configuration, too; its addresses and
// name servers are the pod's, and the gateway is the node's router address.
func TestDelegate(t *testing.T) {
	t.Parallel()
	f, env, calls := delegating(t)
	f.must("STATUS", hostileConf, env...)
	out := f.must("ADD", hostileConf, env...)
	var got current.Result
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.IPs) != 2 || got.IPs[0].Address.String() != "fd00:1::9/128" || got.IPs[1].Address.String() != "10.1.0.9/32" ||
		got.IPs[1].Gateway.String() != "10.1.0.1" || len(got.DNS.Nameservers) != 1 {
		t.Errorf("result %s", out)
	}
	req := f.agent.endpoints["cid1:eth0"]
	if !req.DatapathConfiguration.ExternalIPAM || req.Addressing.IPv4 != "10.1.0.9" || req.Addressing.IPv6 != "fd00:1::9" || req.Addressing.IPv4ExpirationUUID != "" {
		t.Errorf("request %+v", req)
	}
	conf := map[string]any{"ipam": hostileConf["ipam"], "prevResult": json.RawMessage(out)}
	f.must("CHECK", conf, env...)
	wantCalls(t, "all is well", calls, "STATUS cid1", "ADD cid1", "CHECK cid1")

	_, err := f.run("ADD", f.conf(hostileConf), env...)
	f.wantError("second ADD", err, cnitypes.ErrInternal, "DEL it first")
	wantCalls(t, "second ADD", calls)

	f.must("GC", map[string]any{"ipam": hostileConf["ipam"], "cni.dev/valid-attachments": []map[string]string{}}, env...)
	wantCalls(t, "GC", calls, "DEL cid1", "GC cid1")
	f.must("DEL", hostileConf, env...)
	wantCalls(t, "DEL", calls, "DEL cid1")
	f.clean("after GC and DEL")
}

// TestDelegateStatic: static of the CNI project gives what the configuration names, and what the
// runtime asks for by the capability ips.
func TestDelegateStatic(t *testing.T) {
	t.Parallel()
	f, _, _ := delegating(t)
	env := []string{"CNI_PATH=" + testenv.IPAMPlugin(t, "static"), "PATH=" + os.Getenv("PATH")}
	for what, conf := range map[string]map[string]any{
		"named": {"ipam": map[string]any{"type": "static", "addresses": []map[string]string{
			{"address": "10.1.0.9/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::9/64", "gateway": "fd00:1::1"},
		}}},
		"asked for": {
			"ipam": map[string]any{"type": "static"}, "capabilities": map[string]bool{"ips": true},
			"runtimeConfig": map[string]any{"ips": []string{"10.1.0.9/24", "fd00:1::9/64"}},
		},
	} {
		f.must("STATUS", conf, env...)
		out := f.must("ADD", conf, env...)
		var got current.Result
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.IPs) != 2 || got.IPs[0].Address.String() != "fd00:1::9/128" || got.IPs[1].Address.String() != "10.1.0.9/32" || got.IPs[1].Gateway.String() != "10.1.0.1" {
			t.Errorf("%s: result %s", what, out)
		}
		conf["prevResult"] = json.RawMessage(out)
		f.must("CHECK", conf, env...)
		delete(conf, "prevResult")
		f.must("DEL", conf, env...)
		f.clean(what)
	}
}

// TestDelegateReleasedLater: the address of an endpoint that GC has deleted is released by the next
// GC if the IPAM plugin failed, or the answer of the agent was lost, and not if the attachment was
// made again.
func TestDelegateReleasedLater(t *testing.T) {
	t.Parallel()
	f, env, calls := delegating(t)
	conf := func(valid ...map[string]string) map[string]any {
		return map[string]any{"ipam": hostileConf["ipam"], "cni.dev/valid-attachments": append([]map[string]string{}, valid...)}
	}
	f.must("ADD", hostileConf, env...)
	_, err := f.run("GC", f.conf(conf()), append(env, "HOSTILE=fail-del")...)
	f.wantError("the plugin fails", err, cnitypes.ErrTryAgainLater, "keeps")
	f.agent.mu.Lock()
	if len(f.agent.endpoints) > 0 {
		t.Error("the endpoint is there still")
	}
	f.agent.mu.Unlock()
	wantCalls(t, "the plugin fails", calls, "ADD cid1", "DEL cid1")
	other := conf()
	other["name"] = "other"
	f.must("GC", other, env...)
	wantCalls(t, "a GC of another network", calls, "GC cid1")
	f.must("GC", conf(), env...)
	wantCalls(t, "the next GC", calls, "DEL cid1", "GC cid1")
	f.must("GC", conf(), env...)
	wantCalls(t, "one more", calls, "GC cid1")

	f.must("DEL", hostileConf, env...)
	f.must("ADD", hostileConf, env...)
	faulty := func(fault func(string, http.ResponseWriter, *http.Request) bool) {
		f.agent.mu.Lock()
		defer f.agent.mu.Unlock()
		f.agent.fault = fault
	}
	faulty(func(call string, _ http.ResponseWriter, _ *http.Request) bool {
		if strings.HasPrefix(call, "DELETE /v1/endpoint/") {
			f.agent.mu.Lock()
			clear(f.agent.endpoints)
			f.agent.mu.Unlock()
			panic(http.ErrAbortHandler) // it is done, without an answer
		}
		return false
	})
	if _, err := f.run("GC", f.conf(conf()), env...); err == nil {
		t.Error("a GC without an answer succeeded")
	}
	faulty(nil)
	wantCalls(t, "without an answer", calls, "DEL cid1", "ADD cid1")
	f.must("GC", conf(map[string]string{"containerID": "cid1", "ifname": "eth0"}), env...)
	wantCalls(t, "made again", calls, "GC cid1")
	f.must("GC", conf(), env...)
	wantCalls(t, "and collected", calls, "GC cid1")
	f.must("DEL", hostileConf, env...)
	f.clean("in the end")
}

// TestDelegateRollBack: whatever fails after the IPAM plugin was asked has it take the addresses
// back, last of all, and a plugin that hangs is ended with all that it has started.
func TestDelegateRollBack(t *testing.T) {
	t.Parallel()
	f, env, calls := delegating(t)
	f.agent.fault = func(call string, w http.ResponseWriter, _ *http.Request) bool {
		if call == "PUT /v1/endpoint/{id}" {
			answer(w, 400, "address belongs to endpoint 7")
			return true
		}
		return false
	}
	_, err := f.run("ADD", f.conf(hostileConf), env...)
	f.wantError("endpoint refused", err, cnitypes.ErrInternal, "belongs to endpoint 7")
	wantCalls(t, "endpoint refused", calls, "ADD cid1", "DEL cid1")
	f.clean("endpoint refused")
	f.agent.fault = nil

	_, err = f.run("ADD", f.conf(hostileConf), append(env, "HOSTILE=fail")...)
	f.wantError("plugin refuses", err, cnitypes.ErrTryAgainLater, "out of")
	wantCalls(t, "plugin refuses", calls, "ADD cid1", "DEL cid1")

	cmd := exec.Command(f.bin)
	cmd.Env = append([]string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=cid1", "CNI_NETNS=" + f.podPath, "CNI_IFNAME=eth0", "HOSTILE=hang"}, env...)
	cmd.Stdin = bytes.NewReader(f.conf(hostileConf))
	f.inNode(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // another process: nothing notifies
		if text, _ := os.ReadFile(calls); strings.Contains(string(text), "ADD") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the IPAM plugin was not called")
		}
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the interrupted ADD succeeded")
	}
	wantCalls(t, "a plugin that hangs", calls, "ADD cid1", "DEL cid1")
	f.clean("a plugin that hangs")
}

// TestDelegateUndoneWithoutAgent: an agent that freezes while an endpoint is made does not keep the
// IPAM plugin from taking its address back.
func TestDelegateUndoneWithoutAgent(t *testing.T) {
	t.Parallel()
	f, env, calls := delegating(t)
	f.agent.fault = func(call string, w http.ResponseWriter, r *http.Request) bool {
		switch call {
		case "PUT /v1/endpoint/{id}":
			panic(http.ErrAbortHandler) // no answer
		case "DELETE /v1/endpoint/{id}":
			<-r.Context().Done()
			return true
		}
		return false
	}
	_, err := f.run("ADD", f.conf(hostileConf), env...)
	f.wantError("no answer", err, cnitypes.ErrTryAgainLater, "endpoint")
	wantCalls(t, "no answer", calls, "ADD cid1", "DEL cid1")
}

// TestDelegateRefusals: agent and configuration disagree on who gives addresses, or the plugin that
// is named cannot.
func TestDelegateRefusals(t *testing.T) {
	t.Parallel()
	f, env, calls := delegating(t)
	for what, test := range map[string]struct {
		mode string
		conf map[string]any
		code uint
		text string
	}{
		"no plugin named":       {ipamModeDelegated, nil, cnitypes.ErrInvalidNetworkConfig, "ipam.type"},
		"the agent gives":       {"cluster-pool", hostileConf, cnitypes.ErrInvalidNetworkConfig, "--ipam=delegated-plugin"},
		"no such plugin":        {ipamModeDelegated, map[string]any{"ipam": map[string]any{"type": "absent"}}, cnitypes.ErrInternal, "absent"},
		"a path":                {ipamModeDelegated, map[string]any{"ipam": map[string]any{"type": "../hostile"}}, cnitypes.ErrInternal, "../hostile"},
		"one over the network":  {ipamModeDelegated, map[string]any{"ipam": map[string]any{"type": "dhcp"}}, cnitypes.ErrInvalidNetworkConfig, "over the pod's interface"},
		"another capability":    {ipamModeDelegated, map[string]any{"ipam": hostileConf["ipam"], "capabilities": map[string]bool{"mac": true}}, cnitypes.ErrInvalidNetworkConfig, "mac"},
		"the plugin of plugins": {ipamModeDelegated, map[string]any{"ipam": map[string]any{"type": filepath.Base(f.bin)}}, cnitypes.ErrInternal, "itself"},
	} {
		f.agent.config.IPAMMode = test.mode
		env := env
		if what == "the plugin of plugins" {
			env = append(env, "CNI_PATH="+filepath.Dir(f.bin))
		}
		_, err := f.run("ADD", f.conf(test.conf), env...)
		f.wantError(what, err, test.code, test.text)
		_, err = f.run("STATUS", f.conf(test.conf), env...)
		f.wantError("STATUS: "+what, err, test.code, test.text)
		f.clean(what)
	}
	wantCalls(t, "refusals", calls)
}
