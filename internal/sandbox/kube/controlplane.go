package kube

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/kube/image"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Manifests of what a cluster runs besides its network.
var (
	//go:embed manifests/coredns.yaml
	coreDNSManifest []byte
	//go:embed manifests/kube-proxy.yaml
	kubeProxyManifest []byte
)

const etcdURL = "http://127.0.0.1:2379"

// imageFiles are the images of a node: those before Early are there before its kubelet starts.
type imageFiles struct {
	files []string
	early int
}

// prepared is what a cluster is made from.
type prepared struct {
	programs string // directory
	source   string // of a checkout, or empty
	images   imageFiles
}

// prepare sees that programs and images are there.
func (c *Cluster) prepare(ctx context.Context) (prepared, error) {
	b, err := parts.Here(c.out, c.cfg.Terminal)
	if err != nil {
		return prepared{}, err
	}
	p := prepared{programs: b.Dir, source: b.Source}
	names := parts.ControlPlane()
	if c.cfg.Mode == Full {
		names = append(names, parts.Node()...)
	}
	if err := b.Build(ctx, names...); err != nil || c.cfg.Mode != Full {
		return p, err
	}
	k := image.Kitchen{Dir: filepath.Join(b.Dir, "images"), Programs: b.Dir, Source: b.Source, Say: c.say}
	p.images.files, err = k.Make(ctx, "pause", "coredns", "agnhost")
	p.images.early = 2
	if c.cfg.CNI != PTP {
		// It is made in the cluster's own directory, once there is one.
		p.images.files = slices.Insert(p.images.files, 1, c.hawserImage())
		p.images.early++
	}
	return p, err
}

// listener is a port of the machine's loopback that a process on the other side serves.
type listener struct {
	*os.File
	port int
}

func listen(port int) (*listener, error) {
	l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, fmt.Errorf("a port of the loopback for the API server: %w", err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	return &listener{File: f, port: l.Addr().(*net.TCPAddr).Port}, nil
}

// program describes a process of the control plane.
type program struct {
	name  string
	place string // whose network it has; empty for the control plane's
	argv  []string
	ready bool // it says when it is ready
	files []*os.File
}

func (c *Cluster) start(st *state, p program) error {
	process, err := machine.Daemon{
		Namespace: c.netns(cmp.Or(p.place, masterName)), Argv: p.argv, Log: c.log(p.name), Ready: p.ready, Timeout: c.cfg.StartTimeout, Files: p.files,
	}.Start()
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	st.Processes[p.name] = process
	return nil
}

func (c *Cluster) self(args ...string) []string { return append(slices.Clone(c.cfg.Self), args...) }

func (c *Cluster) etcd() program {
	return program{name: "etcd", ready: true,
		argv: c.self("etcd", "--dir", c.etcdDir(), "--ready-fd", "3", "--listen", etcdURL)}
}

// forwarder serves the port of the loopback: the socket is the machine's, the process is in the
// control plane's namespace.
func (c *Cluster) forwarder(st *state, l *listener) program {
	return program{name: "forward", ready: true, files: []*os.File{l.File},
		argv: c.self("kube-forward", "--ready-fd", "3", "--listener-fd", "4", "--to", fmt.Sprintf("%s:%d", st.plan().master().IPv4, apiPort))}
}

func (c *Cluster) apiServer(st *state) program {
	pki := func(name string) string { return c.path("pki", name) }
	return program{name: "kube-apiserver", argv: []string{
		filepath.Join(st.Programs, "kube-apiserver"),
		"--advertise-address=" + st.plan().master().IPv4.String(), "--bind-address=0.0.0.0", fmt.Sprintf("--secure-port=%d", apiPort), "--etcd-servers=" + etcdURL,
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"), "--client-ca-file=" + pki("ca.crt"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("accounts.key"), "--service-account-signing-key-file=" + pki("accounts.key"),
		"--service-cluster-ip-range=" + ranges(st.DualStack, st.plan().services),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet.crt"), "--kubelet-client-key=" + pki("apiserver-kubelet.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki("front-proxy.crt"), "--proxy-client-key-file=" + pki("front-proxy.key"),
		// What it does with its time otherwise: collect events of hours, and audit nothing.
		"--event-ttl=1h", "--profiling=false",
	}}
}

func (c *Cluster) controllers(st *state) []program {
	as := func(name string) []string {
		config := c.path("pki", name+".kubeconfig")
		return []string{"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
			"--leader-elect=false", "--bind-address=127.0.0.1",
			"--kube-api-qps=500", "--kube-api-burst=1000"} // the default would make the controllers take 5 s to start
	}
	pki := func(name string) string { return c.path("pki", name) }
	manager := append([]string{filepath.Join(st.Programs, "kube-controller-manager")}, as("controller-manager")...)
	manager = append(manager,
		"--root-ca-file="+pki("ca.crt"), "--service-account-private-key-file="+pki("accounts.key"), "--use-service-account-credentials=true",
		"--allocate-node-cidrs=true", "--cluster-cidr="+ranges(st.DualStack, st.plan().pods),
		"--service-cluster-ip-range="+ranges(st.DualStack, st.plan().services),
		"--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key"))
	return []program{
		{name: "kube-controller-manager", argv: manager},
		{name: "kube-scheduler", argv: append([]string{filepath.Join(st.Programs, "kube-scheduler")}, as("scheduler")...)},
	}
}

// startStore starts etcd, the API server and the way to it. It does not wait for the API server.
func (c *Cluster) startStore(ctx context.Context, st *state, l *listener) error {
	all := []program{c.forwarder(st, l), c.etcd(), c.apiServer(st)}
	if st.Cloud != "" {
		all = append(all, c.cloudServer())
	}
	if st.meshed() {
		all = append(all, c.meshStore(st))
	}
	if st.Store != "" {
		all = append(all, c.store(st))
	}
	for _, p := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.start(st, p); err != nil {
			return err
		}
	}
	return c.save(st)
}

// finishControlPlane waits for the API server, and starts what would end for good without it.
func (c *Cluster) finishControlPlane(ctx context.Context, st *state) error {
	began := time.Now()
	api, err := c.client(st.Port)
	if err != nil {
		return err
	}
	if err := c.waitAPI(ctx, st, api); err != nil {
		return err
	}
	c.say("API server is ready (%.1f s)", time.Since(began).Seconds())
	// Before the controllers, which would number the nodes as they come.
	for _, n := range st.Nodes {
		if err := api.ensureNode(ctx, n); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	for _, p := range c.controllers(st) {
		if err := c.start(st, p); err != nil {
			return err
		}
	}
	kubeconfig, err := os.ReadFile(c.path("pki", "user.kubeconfig"))
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(c.Kubeconfig(), kubeconfig, 0o600), c.save(st))
}

func (c *Cluster) waitAPI(ctx context.Context, st *state, api *client) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StartTimeout)
	defer cancel()
	for {
		err := api.ready(ctx)
		if err == nil {
			return nil
		}
		for _, name := range []string{"etcd", "kube-apiserver", "forward"} {
			if !st.Processes[name].Alive() {
				return fmt.Errorf("%s ended: %s", name, machine.LastLines(c.log(name), 8))
			}
		}
		if !retry.Sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the API server is not ready (%w): %s", err, machine.LastLines(c.log("kube-apiserver"), 8))
		}
	}
}

// waitAccount waits for the account that pods of the default namespace run as: without it the first
// pod of a quick user would be refused.
func (c *Cluster) waitAccount(ctx context.Context, st *state) error {
	api, err := c.client(st.Port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StartTimeout)
	defer cancel()
	for {
		err := api.do(ctx, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", "", nil, nil)
		if err == nil {
			return nil
		}
		if !st.Processes["kube-controller-manager"].Alive() {
			return fmt.Errorf("kube-controller-manager ended: %s", machine.LastLines(c.log("kube-controller-manager"), 8))
		}
		if !retry.Sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the controllers do nothing (%w): %s", err, machine.LastLines(c.log("kube-controller-manager"), 8))
		}
	}
}

// waitKinds waits until the server lists the kinds of policies that the operator registers: a quick
// user would get the error that there is no such resource. Agents do not wait for them, so that
// nodes may be Ready before.
func (c *Cluster) waitKinds(ctx context.Context, st *state) error {
	if st.CNI != Hawser || st.Mode != Full {
		return nil
	}
	api, err := c.client(st.Port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StartTimeout)
	defer cancel()
	for {
		var list struct{ Resources []struct{ Name string } }
		err := api.do(ctx, http.MethodGet, "/apis/cilium.io/v2", "", nil, &list)
		var names []string
		for _, r := range list.Resources {
			names = append(names, r.Name)
		}
		if slices.Contains(names, "ciliumnetworkpolicies") && slices.Contains(names, "ciliumclusterwidenetworkpolicies") {
			return nil
		}
		if !retry.Sleep(ctx, 100*time.Millisecond) {
			return fmt.Errorf("the operator has not registered its custom resources after %s: %w", c.cfg.StartTimeout, cmp.Or(err, ctx.Err()))
		}
	}
}

// restartControlPlane starts again what has died of it.
func (c *Cluster) restartControlPlane(ctx context.Context, st *state) error {
	all := append([]program{c.etcd(), c.apiServer(st)}, c.controllers(st)...)
	if st.Cloud != "" {
		all = append(all, c.cloudServer())
	}
	if st.meshed() {
		all = append(all, c.meshStore(st))
	}
	if st.Store != "" {
		all = append(all, c.store(st))
	}
	if !st.Processes["forward"].Alive() {
		l, err := listen(st.Port) // the user's kubeconfig names it
		if err != nil {
			return err
		}
		defer l.Close()
		all = slices.Insert(all, 0, c.forwarder(st, l))
	}
	api, err := c.client(st.Port)
	if err != nil {
		return err
	}
	for _, p := range all {
		if st.Processes[p.name].Alive() {
			continue
		}
		if p.name == "kube-controller-manager" || p.name == "kube-scheduler" {
			if err := c.waitAPI(ctx, st, api); err != nil {
				return err
			}
		}
		c.say("%s does not run: starting it again", p.name)
		if err := c.start(st, p); err != nil {
			return err
		}
		if err := c.save(st); err != nil {
			return err
		}
	}
	return c.waitAPI(ctx, st, api)
}

// deploy applies what the cluster runs in pods.
func (c *Cluster) deploy(ctx context.Context, st *state) error {
	if st.Mode == APIOnly {
		return nil
	}
	manifests := [][]byte{dnsManifest(st.plan())}
	if st.KubeProxy {
		manifests = append(manifests, kubeProxyManifest)
	}
	if st.meshed() {
		if err := c.deployMeshSecrets(ctx, st); err != nil {
			return err
		}
	}
	if st.Flows {
		if err := c.deployHubbleSecret(ctx, st); err != nil {
			return err
		}
	}
	if st.Cloud != "" {
		if err := c.deployCloud(ctx, st); err != nil {
			return err
		}
	}
	if st.CNI == Hawser {
		if err := c.deployHawser(ctx, st); err != nil {
			return err
		}
	}
	for _, m := range manifests {
		if err := c.apply(ctx, st, m); err != nil {
			return err
		}
	}
	return nil
}

// dnsManifest is that of CoreDNS with the address that kubelets give to pods.
func dnsManifest(p plan) []byte {
	return bytes.ReplaceAll(coreDNSManifest, []byte("clusterIP: "+plan(0).dnsService().String()), []byte("clusterIP: "+p.dnsService().String()))
}

func (c *Cluster) apply(ctx context.Context, st *state, manifest []byte) error {
	return c.kubectl(ctx, st, manifest, "apply", "--server-side", "--force-conflicts", "--field-manager=hawser-sandbox", "-f", "-")
}

// kubectl runs kubectl with this input. What it says is of interest only if it fails.
func (c *Cluster) kubectl(ctx context.Context, st *state, input []byte, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(st.Programs, "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Stdin = bytes.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", args[0], err, tail(string(out)))
	}
	return nil
}
