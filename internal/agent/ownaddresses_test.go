package agent

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/testenv"
)

const toWorldOnly = `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: own, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: evil}}
  egress: [{toEntities: [%s]}]
`

// received are the texts of datagrams that sockets of a namespace got.
type received struct {
	mu   sync.Mutex
	seen map[string]bool
}

// receive opens a socket for datagrams at all addresses of a namespace.
func receive(t *testing.T, ns namespace, port int) *received {
	t.Helper()
	r := &received{seen: map[string]bool{}}
	var c *net.UDPConn
	if err := ns.Do(func() (err error) { c, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}); return err }); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 256)
		for {
			n, _, err := c.ReadFromUDP(buf)
			if err != nil {
				return
			}
			r.mu.Lock()
			r.seen[string(buf[:n])] = true
			r.mu.Unlock()
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return r
}

func (r *received) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[text]
}

// TestNodesOtherAddresses: what a policy says of the node holds for all addresses by which its
// kernel takes packets for it: those of other devices and of link-local networks, broadcast
// addresses, and in IPv6 those of the routers of its networks; also for one that it gets later.
func TestNodesOtherAddresses(t *testing.T) {
	t.Parallel()
	n, outside := newNode(t)
	n.done("ip", "addr", "add", "169.254.20.10/32", "dev", "lo")
	n.start()
	evil := n.attached("evil", map[string]string{"app": "evil"})
	const port = 7777
	node, world := receive(t, n.ns, port), receive(t, outside, port)
	names := []string{node4, node6, "169.254.20.10", "192.0.2.255", "2001:db8::"}
	try := func(round int, at string) (text string) {
		text = fmt.Sprintf("%s %d", at, round)
		var c net.Conn
		evil.ns.Must(t, func() (err error) {
			c, err = net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(at), port).String())
			return err
		})
		defer c.Close()
		c.Write([]byte(text)) // an error of before is no matter
		return text
	}
	round := 0
	arrives := func(what string, at string, to *received) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() string {
			round++
			text := try(round, at)
			for range 20 {
				if to.has(text) {
					return ""
				}
				time.Sleep(5 * time.Millisecond)
			}
			return fmt.Sprintf("%s: nothing arrives by %s", what, at)
		})
	}
	refused := func(what string, at ...string) {
		t.Helper()
		var texts []string
		for range 5 {
			round++
			for _, at := range at {
				texts = append(texts, try(round, at))
			}
		}
		arrives(what, outside4, world) // what was sent before is through
		arrives(what, outside6, world)
		time.Sleep(100 * time.Millisecond) // nothing reports what does not happen
		for _, text := range texts {
			if node.has(text) {
				t.Errorf("%s: the node has received %q", what, text)
			}
		}
	}
	for _, at := range names {
		arrives("without a policy", at, node)
	}
	n.policy("own.yaml", fmt.Sprintf(toWorldOnly, "world"))
	testenv.Eventually(t, time.Minute, func() string {
		round++
		text := try(round, node4)
		time.Sleep(100 * time.Millisecond)
		if node.has(text) {
			return "the policy is not in force"
		}
		return ""
	})
	refused("the world alone", names...)
	n.done("ip", "addr", "add", "198.51.100.1/24", "dev", "eth0")
	testenv.Eventually(t, time.Minute, func() string {
		round++
		text := try(round, "198.51.100.255")
		time.Sleep(100 * time.Millisecond)
		if node.has(text) {
			return "a new address is not known as the node's"
		}
		return ""
	})
	refused("a new address", "198.51.100.1", "198.51.100.255")
	n.policy("own.yaml", fmt.Sprintf(toWorldOnly, "host"))
	for _, at := range append(names, "198.51.100.255") {
		arrives("the node alone", at, node)
	}
	n.stop()
}

// TestNodeAddressLost: the status names an address by which others know the node and which it has
// no more, until the node has it again.
func TestNodeAddressLost(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	until := func(what string, state rest.State, texts ...string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() string {
			st, err := n.client.Health(t.Context(), false)
			i := slices.IndexFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == "node-addresses" })
			if err != nil || i < 0 || st.Parts[i].State != state || slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(st.Parts[i].Msg, s) }) {
				return fmt.Sprintf("%s: %+v, %v", what, st.Parts, err)
			}
			return ""
		})
	}
	n.done("ip", "addr", "add", "192.0.2.77/24", "dev", "eth0")
	until("another address", rest.StateOk)
	n.done("ip", "-6", "addr", "del", "2001:db8::1/64", "dev", "eth0")
	until("without its address", rest.StateWarning, "2001:db8::1", "eth0")
	n.done("ip", "addr", "add", "2001:db8::1/64", "dev", "eth0", "nodad")
	until("with it again", rest.StateOk)
	n.stop()
}

// TestNodeAddressComesLater: an address of the node that it gets, or loses, while the agent runs is
// the same to the programs as if it had been so at the start: the next agent takes them over.
func TestNodeAddressComesLater(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--ipv6-node", "2001:db8::77")
	n.start()
	programs := func(times int, pinned string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() string {
			text := n.logText()
			_, last, _ := strings.Cut(text[max(0, strings.LastIndex(text, "Programs ready")):], "pinned=")
			if got := strings.Count(text, "Programs ready"); got != times || !strings.HasPrefix(last, pinned) {
				return fmt.Sprintf("programs were configured %d times, the last time with pinned=%.5s", got, last)
			}
			return ""
		})
	}
	programs(1, "false")
	times := 1
	for _, do := range []string{"add", "del"} {
		args := []string{"-6", "addr", do, "2001:db8::77/64", "dev", "eth0"}
		if do == "add" {
			args = append(args, "nodad")
		}
		n.done("ip", args...)
		programs(times+1, "false")
		n.stop()
		n.start()
		programs(times+2, "true")
		times += 2
	}
	n.stop()
}

// TestNodeAddressTranslated: in the name of an address that the node does not have nobody is sent
// on. The status says so where clients outside are.
func TestNodeAddressTranslated(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]rest.State{"kube-proxy": rest.StateOk, "in its place": rest.StateWarning} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, _ := newNode(t)
			n.flags = append(n.flags, "--ipv4-node", "203.0.113.9")
			if want != rest.StateOk {
				root, err := loader.FindCgroup()
				if err != nil {
					t.Fatal(err)
				}
				n.flags = append(n.flags, "--kube-proxy-replacement", "--cgroup-root", testenv.NewCgroup(t, root))
			}
			n.start()
			testenv.Eventually(t, 20*time.Second, func() string {
				if p := n.part("node-addresses"); p.State != want || strings.Contains(p.Msg, "203.0.113.9") != (want != rest.StateOk) {
					return fmt.Sprintf("the node's addresses: %+v, want %s", p, want)
				}
				return ""
			})
			n.stop()
		})
	}
}
