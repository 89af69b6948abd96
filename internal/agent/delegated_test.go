package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/testenv"
)

// delegatedNode is a node whose pods get addresses from the CNI project's host-local.
func delegatedNode(t *testing.T) *machineNode {
	n, _ := newNode(t)
	// An agent that is killed at the wrong moment leaves a link to its successor, which removes it
	// after this time: audits wait longer.
	n.flags = append(n.flags, "--ipam=delegated-plugin", "--local-router-ipv4=10.0.1.1", "--local-router-ipv6=fd00:1::1",
		"--orphan-link-grace-period=10s")
	n.conf = map[string]any{"ipam": map[string]any{
		"type": "host-local", "dataDir": n.path("run/host-local"),
		"ranges": [][]map[string]string{{{"subnet": pods4, "gateway": "10.0.1.1"}}, {{"subnet": pods6, "gateway": "fd00:1::1"}}},
	}}
	n.env = append(n.env, "CNI_PATH="+testenv.IPAMPlugin(t, "host-local"))
	return n
}

// held are the addresses that host-local has given, by the container that has them.
func (n *machineNode) held() map[string]string {
	n.t.Helper()
	files, err := filepath.Glob(n.path("run/host-local/cilium/*"))
	if err != nil {
		n.t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range files {
		name := filepath.Base(f)
		if name == "lock" || strings.HasPrefix(name, "last_reserved_ip") {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			n.t.Fatal(err)
		}
		container, _, _ := strings.Cut(string(data), "\n")
		out[strings.ReplaceAll(name, "_", ":")] = strings.TrimSpace(container)
	}
	return out
}

// holds checks that the plugin has given addresses to these pods and to no others.
func (n *machineNode) holds(when string, pods ...*machinePod) {
	n.t.Helper()
	want := map[string]string{}
	for _, p := range pods {
		want[p.ip4.String()], want[p.ip6.String()] = p.container, p.container
	}
	if diff := cmp.Diff(want, n.held()); diff != "" {
		n.t.Errorf("%s: addresses of host-local (-want +got):\n%s", when, diff)
	}
}

// TestDelegatedPlugin: host-local gives the addresses, and all else is as in other modes: pods
// reach each other, nothing is lost or doubled when the agent or the plugin dies, and nothing is
// left.
func TestDelegatedPlugin(t *testing.T) {
	t.Parallel()
	n := delegatedNode(t)
	n.start()
	plugins := "CNI_PATH=" + strings.TrimPrefix(n.env[0], "CNI_PATH=")
	before := n.audit()
	add := func(name string) *machinePod {
		t.Helper()
		p := n.newPod(name, nil)
		if err := p.add(plugins); err != nil {
			t.Fatal(err)
		}
		return p
	}
	reach := func(what string, from, to *machinePod) {
		t.Helper()
		for _, ip := range []string{to.ip4.String(), to.ip6.String()} {
			if err := ping(t, from.ns, netip.MustParseAddr(ip), 5*time.Second); err != nil {
				t.Errorf("%s: %s to %s: %v", what, from.name, ip, err)
			}
		}
	}
	a, b := add("a"), add("b")
	n.holds("two pods", a, b)
	reach("two pods", a, b)
	if code, text := n.call("POST", "/ipam?owner=default/c", "", "expiration", "true"); code != 400 || !strings.Contains(text, "ipam.type") {
		t.Errorf("the agent answers %d %s to who asks it for an address", code, text)
	}

	// A runtime that asks again for a pod that runs takes nothing from it.
	if err := a.add(plugins); err == nil || !strings.Contains(err.Error(), "DEL it first") {
		t.Errorf("second ADD: %v", err)
	}
	n.holds("a second ADD", a, b)
	reach("a second ADD", b, a)

	// Agent and plugin die, at every moment.
	n.kill()
	n.start()
	reach("the agent was killed", a, b)
	c := add("c")
	n.holds("the agent was killed", a, b, c)
	reach("the agent was killed", c, a)
	for _, step := range []string{"add-ip", "add-link", "add-pod", "add-endpoint", "add-result"} {
		p := n.newPod("killed", nil)
		if err := p.add(plugins, "HAWSER_CNI_CRASH_AT="+step); err == nil {
			t.Fatalf("the plugin was not killed at %s", step)
		}
		if err := p.del(plugins); err != nil {
			t.Errorf("DEL after a death at %s: %v", step, err)
		}
		n.holds("a plugin died at "+step, a, b, c)
	}

	// CHECK and STATUS are the other plugin's, too.
	status := func() error { _, err := a.run("STATUS", plugins); return err }
	if err := status(); err != nil {
		t.Error(err)
	}
	conf := n.conf
	n.conf = maps.Clone(conf)
	n.conf["prevResult"] = map[string]any{"cniVersion": "1.1.0", "ips": []map[string]string{{"address": a.ip4.String() + "/32"}, {"address": a.ip6.String() + "/128"}}}
	if _, err := a.run("CHECK", plugins); err != nil {
		t.Error(err)
	}
	file := filepath.Join(n.path("run/host-local/cilium"), a.ip4.String())
	if err := os.Rename(file, n.path("hidden")); err != nil {
		t.Fatal(err)
	}
	file6 := filepath.Join(n.path("run/host-local/cilium"), a.ip6.String())
	if err := os.Rename(file6, n.path("hidden6")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.run("CHECK", plugins); err == nil || !strings.Contains(err.Error(), "host-local") {
		t.Errorf("CHECK of an address that host-local does not know: %v", err)
	}
	for from, to := range map[string]string{"hidden": file, "hidden6": file6} {
		if err := os.Rename(n.path(from), to); err != nil {
			t.Fatal(err)
		}
	}
	n.conf = map[string]any{}
	if err := status(); err == nil || !strings.Contains(err.Error(), "ipam.type") {
		t.Errorf("STATUS without the plugin's name: %v", err)
	}
	if err := n.newPod("without", nil).add(plugins); err == nil || !strings.Contains(err.Error(), "ipam.type") {
		t.Errorf("ADD without the plugin's name: %v", err)
	}

	// GC keeps what the runtime lists, and takes both plugins' parts of what it does not.
	n.conf = maps.Clone(conf)
	n.conf["cni.dev/valid-attachments"] = []map[string]string{{"containerID": a.container, "ifname": "eth0"}, {"containerID": b.container, "ifname": "eth0"}}
	if _, err := a.run("GC", plugins); err != nil {
		t.Error(err)
	}
	n.conf = conf
	n.holds("GC", a, b)

	// A DEL without an agent frees the address at once; no pod can be given it before the agent has
	// observed that.
	n.kill()
	if err := b.del(plugins); err != nil {
		t.Error(err)
	}
	n.holds("DEL without an agent", a)
	n.start()
	d := add("d")
	n.holds("DEL without an agent", a, d)
	reach("DEL without an agent", a, d)
	for _, p := range []*machinePod{a, d} {
		for range 2 {
			if err := p.del(plugins); err != nil {
				t.Error(err)
			}
		}
	}
	n.holds("all are gone")
	n.sameAudit(before, "all are gone")
}

// slowIPAM is host-local, whose first ADD waits at the end until there is the file go.
const slowIPAM = `#!/bin/sh
out=$("$SLOW_BIN/host-local"); code=$?
if [ "$CNI_COMMAND" = ADD ] && mkdir "$SLOW_AT/began" 2>/dev/null; then
	while [ ! -e "$SLOW_AT/go" ]; do sleep 0.05; done
fi
printf '%s' "$out"
exit $code
`

// TestDelegatedAtOnce: while an ADD is under way a second one of the same attachment is refused and
// frees nothing, and a DEL comes after it.
func TestDelegatedAtOnce(t *testing.T) {
	t.Parallel()
	n := delegatedNode(t)
	n.start()
	bin := strings.TrimPrefix(n.env[0], "CNI_PATH=")
	if err := os.WriteFile(filepath.Join(bin, "slow"), []byte(slowIPAM), 0o755); err != nil {
		t.Fatal(err)
	}
	n.conf["ipam"].(map[string]any)["type"] = "slow"
	before := n.audit()
	begin := func(p *machinePod) (env []string, finish func() error) {
		at := t.TempDir()
		env = []string{"CNI_PATH=" + bin, "PATH=" + os.Getenv("PATH"), "SLOW_BIN=" + bin, "SLOW_AT=" + at}
		done := make(chan error, 1)
		go func() { done <- p.add(env...) }()
		testenv.Eventually(t, time.Minute, func() string {
			if _, err := os.Stat(filepath.Join(at, "began")); err != nil {
				return err.Error()
			}
			return ""
		})
		return env, func() error {
			if err := os.WriteFile(filepath.Join(at, "go"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return <-done
		}
	}

	p, other := n.newPod("web", nil), n.newPod("other", nil)
	env, finish := begin(p)
	second := *p
	if err := second.add(env...); err == nil || !strings.Contains(err.Error(), "under way") {
		t.Errorf("a second ADD meanwhile: %v", err)
	}
	if err := other.add(env...); err != nil {
		t.Errorf("an ADD of another pod meanwhile: %v", err)
	}
	if err := finish(); err != nil {
		t.Fatalf("the first ADD: %v", err)
	}
	n.holds("two ADDs at once", p, other)
	for _, ip := range []netip.Addr{p.ip4, p.ip6} {
		if err := ping(t, other.ns, ip, 5*time.Second); err != nil {
			t.Errorf("the pod that was added twice does not answer at %s: %v", ip, err)
		}
	}
	for _, p := range []*machinePod{p, other} {
		if err := p.del(env...); err != nil {
			t.Error(err)
		}
	}

	p = n.newPod("short", nil)
	env, finish = begin(p)
	deleted := make(chan error, 1)
	go func() { deleted <- p.del(env...) }()
	select {
	case err := <-deleted:
		t.Errorf("DEL has ended while ADD is under way: %v", err)
		deleted <- err
	case <-time.After(time.Second):
	}
	if err := finish(); err != nil {
		t.Errorf("ADD: %v", err)
	}
	if err := <-deleted; err != nil {
		t.Errorf("DEL: %v", err)
	}
	n.holds("ADD and DEL at once")
	n.sameAudit(before, "ADD and DEL at once")
}

// TestDelegatedHostile: an IPAM plugin that fails, answers nonsense or gives what is not free gets
// no pod another one's address, and nothing is left of the pod that it was to serve.
func TestDelegatedHostile(t *testing.T) {
	t.Parallel()
	n := delegatedNode(t)
	for _, args := range []string{"link add other0 type veth peer name other1", "link set other0 up", "addr add 10.0.1.200/32 dev other0"} {
		if out := n.command("ip", strings.Fields(args)...); out != "" {
			t.Fatalf("ip %s: %s", args, out)
		}
	}
	n.start()
	n.conf = map[string]any{"ipam": map[string]any{"type": "hostile"}}
	plugins, calls := "CNI_PATH="+testenv.HostileIPAM(t), n.path("hostile.log")
	env := func(how string, ips ...string) []string {
		var list []string
		for _, ip := range ips {
			text, _ := json.Marshal(map[string]string{"address": ip})
			list = append(list, string(text))
		}
		return []string{plugins, "PATH=" + os.Getenv("PATH"), "HOSTILE_LOG=" + calls, "HOSTILE=" + how, "HOSTILE_IPS=" + strings.Join(list, ",")}
	}
	victim := n.newPod("victim", nil)
	if err := victim.add(env("", "10.0.1.7/24", "fd00:1::7/112")...); err != nil {
		t.Fatal(err)
	}
	before := n.audit()
	for _, test := range []struct {
		how, want string
		ips       []string
	}{
		{"garbage", "hostile", nil},
		{"silent", "hostile", nil},
		{"empty", "no address", nil},
		{"flood", "more than", nil},
		{"fail", "range exhausted", nil},
		{"die", "hostile", nil},
		{"", "are of one family", []string{"10.0.1.8/24", "10.0.1.9/24"}},
		{"", "no address for a pod", []string{"224.0.0.1/24"}},
		{"", "belongs to endpoint", []string{"10.0.1.7/24"}},
		{"", "belongs to endpoint", []string{"10.0.1.8/24", "fd00:1::7/112"}},
		{"", "belongs to router", []string{"10.0.1.1/24"}},
		{"", "is not in the node's pod CIDR", []string{"10.0.2.8/24"}},
		{"", "is not in the node's pod CIDR", []string{"192.0.2.1/24"}},
		{"", "an interface of the node", []string{"10.0.1.200/24"}},
		{"", "an interface of the node", []string{"10.0.1.200/24", "fd00:1::8/112"}},
		{"fail-del", "belongs to endpoint", []string{"10.0.1.7/24"}},
	} {
		what := fmt.Sprintf("%s %v", test.how, test.ips)
		if err := os.Remove(calls); err != nil {
			t.Fatal(err)
		}
		p := n.newPod("unlucky", nil)
		if err := p.add(env(test.how, test.ips...)...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", what, err, test.want)
		}
		text, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		if want := "ADD " + p.container + "\nDEL " + p.container + "\n"; string(text) != want {
			t.Errorf("%s: the plugin was called %q, want %q", what, text, want)
		}
		n.sameAudit(before, what)
		if names := p.ns.LinkNames(t); !slices.Equal(names, []string{"lo"}) {
			t.Errorf("%s: the pod has %v", what, names)
		}
	}

	// What it gave and was refused for may be given to the next, at once.
	p := n.newPod("next", nil)
	if err := p.add(env("", "10.0.1.8/24", "fd00:1::8/112")...); err != nil {
		t.Error(err)
	}
	// A DEL that it refuses is the runtime's to repeat; the pod is without network by then.
	if err := p.del(env("fail-del")...); err == nil || !strings.Contains(err.Error(), "keeps") {
		t.Errorf("DEL: %v", err)
	}
	n.sameAudit(before, "a refused DEL")
	if err := p.del(env("")...); err != nil {
		t.Error(err)
	}
	// An agent that starts again has forgotten no pod.
	n.kill()
	n.start()
	if err := n.newPod("late", nil).add(env("", "10.0.1.7/24")...); err == nil || !strings.Contains(err.Error(), "belongs to endpoint") {
		t.Errorf("after a restart: %v", err)
	}
	if err := victim.del(env("")...); err != nil {
		t.Error(err)
	}
}
