package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/datapath/maps"
)

// testbed is a small cluster: etcd and nodes with their agents.
type testbed struct {
	b     *bencher
	dir   string
	etcd  *etcdServer
	nodes []*node
	pods  []*pod
	spare *namespace // the other end of a single node's link
}

// node is a namespace with an agent.
type node struct {
	testbed *testbed
	name    string
	ns      *namespace
	agent   *child.Process
	index   int
}

// pod is a namespace attached to a node by the plugin.
type pod struct {
	node *node
	name string
	app  string
	ns   *namespace
	ipv4 netip.Addr
}

// onTestbed measures on a testbed of its own.
func onTestbed(nodes int, measure func(*bencher, context.Context, *testbed) error) func(*bencher, context.Context) error {
	return func(b *bencher, ctx context.Context) (err error) {
		r, err := b.newTestbed(ctx, nodes)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		return measure(b, ctx, r)
	}
}

// newTestbed brings up nodes on one link and waits until their agents are ready.
func (b *bencher) newTestbed(ctx context.Context, nodes int) (r *testbed, err error) {
	dir, err := os.MkdirTemp(b.dir, "testbed-")
	if err != nil {
		return nil, err
	}
	r = &testbed{b: b, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if err := os.MkdirAll(r.policies(), 0o700); err != nil {
		return r, err
	}
	if r.etcd, err = b.startEtcd(ctx); err != nil {
		return r, err
	}
	for i := range nodes {
		n := &node{testbed: r, name: fmt.Sprintf("n%d", i+1), index: i + 1}
		if n.ns, err = b.newNamespace(filepath.Base(dir) + "-" + n.name); err != nil {
			return r, err
		}
		r.nodes = append(r.nodes, n)
	}
	switch nodes {
	case 1:
		if r.spare, err = b.newNamespace(filepath.Base(dir) + "-spare"); err != nil {
			return r, err
		}
		err = errors.Join(veth(r.nodes[0].ns, "eth0", r.spare, "eth0"), r.spare.up("eth0", "192.0.2.254/24"))
	case 2:
		err = veth(r.nodes[0].ns, "eth0", r.nodes[1].ns, "eth0")
	default:
		err = fmt.Errorf("a testbed has 1 or 2 nodes, not %d", nodes)
	}
	if err != nil {
		return r, err
	}
	for _, n := range r.nodes {
		if err := errors.Join(n.ns.up("eth0", fmt.Sprintf("192.0.2.%d/24", n.index)), n.ns.forward()); err != nil {
			return r, err
		}
	}
	return r, nil
}

// startAgents starts the nodes' agents, with more flags.
func (r *testbed) startAgents(ctx context.Context, more ...string) error {
	for _, n := range r.nodes {
		if err := n.start(more...); err != nil {
			return err
		}
	}
	for _, n := range r.nodes {
		if err := n.waitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// policies is the directory that the agents read policies from.
func (r *testbed) policies() string { return filepath.Join(r.dir, "policies") }

// writePolicy puts a policy there in one step.
func (r *testbed) writePolicy(name, text string) error {
	return atomicfile.Write(filepath.Join(r.policies(), name), []byte(text), 0o600, atomicfile.Process)
}

// close removes everything of the testbed.
func (r *testbed) close() error {
	var errs []error
	for _, n := range r.nodes {
		errs = append(errs, n.agent.Stop(15*time.Second))
	}
	if r.etcd != nil {
		errs = append(errs, r.etcd.stop())
	}
	for _, p := range r.pods {
		errs = append(errs, p.ns.remove())
	}
	for _, n := range r.nodes {
		errs = append(errs, n.ns.remove())
	}
	if r.spare != nil {
		errs = append(errs, r.spare.remove())
	}
	return errors.Join(append(errs, ReleaseMounts(r.dir))...)
}

func (n *node) path(name string) string { return filepath.Join(n.testbed.dir, n.name+"-"+name) }
func (n *node) socket() string          { return filepath.Join(n.path("run"), "agent.sock") }

// start starts the agent. It does not wait for it.
func (n *node) start(more ...string) error {
	b := n.testbed.b
	for _, d := range []string{"run", "bpf"} {
		if err := os.MkdirAll(n.path(d), 0o700); err != nil {
			return err
		}
	}
	argv := append([]string{
		filepath.Join(b.cfg.BinDir, "hawser-agent"),
		"--node-name", n.name,
		"--devices", "eth0",
		"--ipv4-range", fmt.Sprintf("10.%d.0.0/22", n.index),
		"--ipv6-range", fmt.Sprintf("fd00:%d::/112", n.index),
		"--state-dir", n.path("run"),
		"--socket-path", n.socket(),
		"--bpf-root", n.path("bpf"),
		"--static-cnp-path", n.testbed.policies(),
		"--kvstore", "etcd",
		"--kvstore-opt", "etcd.address=" + n.testbed.etcd.address(),
		// The limit of requests is there to protect a cluster's etcd from hundreds of nodes.
		"--kvstore-opt", "etcd.qps=10000",
		"--agent-health-port", "0",
	}, more...)
	var err error
	n.agent, err = child.Start("the agent of "+n.name, n.path("agent.log"), n.ns.do, argv...)
	return err
}

// memory returns the resident set of the agent in bytes.
func (n *node) memory() (float64, error) {
	u, err := n.agent.Usage()
	return float64(u.Memory), err
}

// waitReady waits until the agent says that it is well.
func (n *node) waitReady(ctx context.Context) error {
	err := child.Poll(ctx, 60*time.Second, time.Millisecond, func() error {
		if n.agent.Ended() {
			return nil
		}
		return n.healthy(ctx)
	})
	if n.agent.Ended() {
		return fmt.Errorf("the agent of %s ended: %s", n.name, n.agent.Tail())
	}
	if err != nil {
		return fmt.Errorf("the agent of %s is not ready: %w: %s", n.name, err, n.agent.Tail())
	}
	return nil
}

// get asks the agent's API.
func (n *node) get(ctx context.Context, path string, header map[string]string) ([]byte, error) {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", n.socket())
	}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, resp.Status, body)
	}
	return body, err
}

func (n *node) healthy(ctx context.Context) error {
	if _, err := n.get(ctx, "/v1/healthz", map[string]string{"brief": "true"}); err != nil {
		return err
	}
	// Endpoint requests are answered only when everything is restored.
	_, err := n.get(ctx, "/v1/endpoint", nil)
	return err
}

// kernel opens the node's maps to look at them.
func (n *node) kernel() (*maps.Maps, error) {
	cfg := maps.Defaults()
	cfg.Dir = filepath.Join(n.path("bpf"), "hawser")
	return maps.Open(cfg)
}

// newPod makes a pod's namespace; it is not attached yet.
func (n *node) newPod(name, app string) (*pod, error) {
	ns, err := n.testbed.b.newNamespace(filepath.Base(n.testbed.dir) + "-pod-" + name)
	if err != nil {
		return nil, err
	}
	p := &pod{node: n, name: name, app: app, ns: ns}
	n.testbed.pods = append(n.testbed.pods, p)
	return p, nil
}

// addPod makes a pod and attaches it.
func (n *node) addPod(name, app string) (*pod, error) {
	p, err := n.newPod(name, app)
	if err != nil {
		return nil, err
	}
	_, err = p.plugin("ADD")
	return p, err
}

// plugin runs the plugin on the node as a container runtime does, and returns the time from the
// start of the process to its end.
func (p *pod) plugin(command string) (time.Duration, error) {
	n := p.node
	a := attachment{
		bin: n.testbed.b.cfg.BinDir, inNode: n.ns.do, socket: n.socket(), netns: p.ns.path, app: p.app,
		container: filepath.Base(n.testbed.dir) + "-" + p.name, args: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + p.name,
	}
	took, ipv4, err := a.run(command)
	if err != nil {
		return took, fmt.Errorf("%s of %s: %w", command, p.name, err)
	}
	if command == "ADD" {
		p.ipv4 = ipv4
	}
	return took, nil
}

// attachment is what a container runtime asks the plugin for: eth0 in a namespace.
type attachment struct {
	// bin is the directory of the plugin, which inNode runs on the node with the agent of socket.
	bin    string
	inNode func(func() error) error
	socket string
	// netns is the pod's namespace, container the runtime's name of it, args are CNI_ARGS. The pod
	// has the label app, unless that is empty.
	netns, container, args, app string
}

// run executes the plugin, and returns the time from the start of the process to its end and, of an
// ADD, the IPv4 address.
func (a *attachment) run(command string) (took time.Duration, ipv4 netip.Addr, err error) {
	conf := map[string]any{"cniVersion": "1.1.0", "name": "hawser", "type": "hawser-cni", "socket-path": a.socket}
	if a.app != "" {
		conf["args"] = map[string]any{"cni": map[string]any{"labels": []map[string]string{{"key": "app", "value": a.app}}}}
	}
	text, err := json.Marshal(conf)
	if err != nil {
		return 0, ipv4, err
	}
	cmd := exec.Command(filepath.Join(a.bin, "hawser-cni"))
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + a.container, "CNI_NETNS=" + a.netns, "CNI_IFNAME=eth0", "CNI_PATH=" + a.bin, "CNI_ARGS=" + a.args,
	}
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &out, &errOut
	err = a.inNode(func() error {
		start := time.Now()
		err := cmd.Run()
		took = time.Since(start)
		return err
	})
	if err != nil {
		return took, ipv4, fmt.Errorf("%w: %s%s", err, out.Bytes(), errOut.Bytes())
	}
	if command != "ADD" {
		return took, ipv4, nil
	}
	var result struct{ IPs []struct{ Address string } }
	if err := json.Unmarshal(out.Bytes(), &result); err != nil {
		return took, ipv4, err
	}
	for _, ip := range result.IPs {
		if p, err := netip.ParsePrefix(ip.Address); err == nil && p.Addr().Is4() {
			ipv4 = p.Addr()
		}
	}
	if !ipv4.IsValid() {
		return took, ipv4, fmt.Errorf("no IPv4 address was given: %s", out.Bytes())
	}
	return took, ipv4, nil
}
