package agent

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv"
)

// probe asks the agent as the kubelet does.
func (n *machineNode) probe(path string) (code int, body string) {
	n.t.Helper()
	return n.probeAt(9879, path)
}

// probeAt is probe at another port.
func (n *machineNode) probeAt(port int, path string) (code int, body string) {
	n.t.Helper()
	resp, err := n.get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestReadyWhenObserved: an agent that starts while the store is away keeps the pods of its node
// going and fails nothing, but is ready, and lets a rollout go on, only when it has observed
// everything. One that has is not bothered by an outage later.
func TestReadyWhenObserved(t *testing.T) {
	t.Parallel()
	store, n, _ := nodesWithStore(t, "--prometheus-serve-addr", "127.0.0.1:9962")
	n.start()
	web, client := n.attached("web", map[string]string{"app": "web"}), n.attached("client", map[string]string{"app": "client"})
	to := web.both(80)[0]
	serveEcho(t, web.ns, to)
	works := func(when string) {
		t.Helper()
		if err := once(client.ns, to, patient); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	want := func(when string, ready int, says string) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() string {
			for path, want := range map[string]int{"/healthz": http.StatusOK, "/livez": http.StatusOK, "/readyz": ready} {
				if code, body := n.probe(path); code != want || !strings.Contains(body, says) {
					return fmt.Sprintf("%s: %s: %d %q, want %d and %q", when, path, code, body, want, says)
				}
			}
			if r := n.metric("cilium_agent_ready"); (r == 1) != (ready == http.StatusOK) {
				return fmt.Sprintf("%s: /readyz answers %d, the metric is %v", when, ready, r)
			}
			return ""
		})
	}
	want("with the store", http.StatusOK, "")
	store.Stop()
	testenv.Eventually(t, time.Minute, func() string {
		if st, err := n.client.Health(t.Context(), false); err != nil || st.Kvstore.State == rest.StateOk {
			return fmt.Sprintf("the agent does not see that the store is away: %+v, %v", st.Kvstore, err)
		}
		return ""
	})
	want("the store goes away", http.StatusOK, "")
	n.kill()
	n.launch()
	n.serving(false)
	want("started without a store", http.StatusServiceUnavailable, "not observed yet: ")
	works("started without a store")
	st, err := n.client.Health(t.Context(), false)
	if err != nil || st.Cilium.State != rest.StateWarning {
		t.Errorf("started without a store, the agent says %+v, %v; a failure would have the plugin call the node not ready", st.Cilium, err)
	}
	if p := n.part(partSync); p.State != rest.StateWarning || !strings.Contains(p.Msg, "identities") || !strings.Contains(p.Msg, "nodes") {
		t.Errorf("the status does not say what was not observed: %+v", p)
	}
	store.Start()
	want("the store is back", http.StatusOK, "")
	testenv.Eventually(t, time.Minute, func() string {
		if p := n.part(partSync); p.State != rest.StateOk {
			return fmt.Sprintf("the status: %+v", p)
		}
		return ""
	})
	works("the store is back")
	n.stop()
}

// freeze has the kernel refuse what processes write into a map of the node from now on.
func (n *machineNode) freeze(name string) {
	n.t.Helper()
	pinned := ""
	err := filepath.WalkDir(n.path("bpf"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == name {
			pinned = path
		}
		return err
	})
	if err != nil || pinned == "" {
		n.t.Fatalf("no map %s is pinned: %v", name, err)
	}
	if err := freezeMap(pinned); err != nil {
		n.t.Fatal(err)
	}
}

// freezeMap freezes a pinned map.
func freezeMap(path string) error {
	const objGet, mapFreeze = 7, 22 // enum bpf_cmd of linux/bpf.h
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	get := struct {
		path      uint64
		fd, flags uint32
	}{path: uint64(uintptr(unsafe.Pointer(name)))}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, objGet, uintptr(unsafe.Pointer(&get)), unsafe.Sizeof(get))
	runtime.KeepAlive(name)
	if errno != 0 {
		return fmt.Errorf("open %s: %w", path, errno)
	}
	defer unix.Close(int(fd))
	freeze := struct{ fd uint32 }{uint32(fd)}
	if _, _, errno = unix.Syscall(unix.SYS_BPF, mapFreeze, uintptr(unsafe.Pointer(&freeze)), unsafe.Sizeof(freeze)); errno != 0 {
		return fmt.Errorf("freeze %s: %w", path, errno)
	}
	return nil
}

// TestCollectionFails: that expired flows cannot be collected is for people to see. Pods can be
// attached, and policy is in force, so the node stays ready, for load balancers as well.
func TestCollectionFails(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--conntrack-gc-interval", "1s", "--kube-proxy-replacement", "--kube-proxy-replacement-healthz-bind-address", "127.0.0.1:10256")
	n.start()
	n.attached("web", nil) // whose account is written at each collection
	says := func(want rest.State) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() string {
			if p := n.part("conntrack"); p.State != want {
				return fmt.Sprintf("the collection of flows: %+v, want %s", p, want)
			}
			return ""
		})
	}
	says(rest.StateOk)
	n.freeze("ct_accounts")
	says(rest.StateWarning)
	if code, body := n.probe("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := n.probeAt(10256, "/healthz"); code != http.StatusOK || !strings.Contains(body, "lastUpdated") {
		t.Errorf("kube-proxy's /healthz: %d %s; load balancers would leave the node out", code, body)
	}
	n.stop()
}

// TestSyncGate: a gate opens when the last of what is expected has come, not before, and says what
// has not.
func TestSyncGate(t *testing.T) {
	t.Parallel()
	g := newSyncGate()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	one := g.expect("one")
	one()
	two, three := g.expect("two"), g.expect("three")
	if err := g.wait(ended); err == nil {
		t.Error("the gate is open before anything was waited for")
	}
	three()
	three()
	if got := g.missing(); !slices.Equal(got, []string{"two"}) {
		t.Errorf("%q are missing", got)
	}
	if err := g.wait(ended); err == nil {
		t.Error("the gate is open before the last has come")
	}
	two()
	if err := g.wait(t.Context()); err != nil || len(g.missing()) > 0 {
		t.Errorf("the gate is closed: %v, %q", err, g.missing())
	}
	if err := newSyncGate().wait(t.Context()); err != nil {
		t.Errorf("a gate of nothing is closed: %v", err)
	}
}
