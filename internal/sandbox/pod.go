package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// undoTimeout bounds the DEL after an ADD that failed.
const undoTimeout = 30 * time.Second

// PodSpec says what to run.
type PodSpec struct {
	// Name is the pod's, and what its server answers: the form of a sandbox's name.
	Name string
	// Namespace is the Kubernetes namespace that policies see; default if empty.
	Namespace string
	// Node to run on; the one with the fewest pods if empty.
	Node string
	// Labels of the pod.
	Labels map[string]string
	// Ports that its server listens on, TCP and UDP; 80 if empty.
	Ports []uint16

	// peers are whom it talks to, all the time.
	peers []peer
}

// Pod is a running pod.
type Pod struct {
	Name    string     `json:"name"`
	Node    string     `json:"node"`
	IPv4    netip.Addr `json:"ipv4,omitzero"`
	IPv6    netip.Addr `json:"ipv6,omitzero"`
	Ports   []uint16   `json:"ports"`
	AddTime Duration   `json:"addTime"` // of the CNI plugin, from exec to exit
}

// Duration is a time.Duration that reads as text in JSON.
type Duration time.Duration

// MarshalText writes the duration as time.Duration prints it, to the microsecond.
func (d Duration) MarshalText() ([]byte, error) {
	return []byte(time.Duration(d).Round(time.Microsecond).String()), nil
}

// Run creates a pod as a container runtime does: a namespace, the CNI plugin exec'd on the node,
// then the pod's process. If a step fails, what the earlier ones made is removed.
func (s *Sandbox) Run(ctx context.Context, spec PodSpec) (Pod, error) {
	var out Pod
	err := s.withLock(func() error {
		st, err := s.running()
		if err != nil {
			return err
		}
		out, err = s.run(ctx, st, spec)
		return err
	})
	return out, err
}

func (s *Sandbox) run(ctx context.Context, st *state, spec PodSpec) (Pod, error) {
	p, err := newPod(st, spec)
	if err != nil {
		return Pod{}, err
	}
	n := st.node(p.Node)
	netns := s.netns("pod-" + p.Name)
	undo := func(cause error) error {
		return errors.Join(cause, s.endPod(p), machine.RemoveNamespace(netns))
	}
	if err := machine.CreateNamespace(netns); err != nil {
		return Pod{}, err
	}
	cni, list, rt, err := s.runtimeFor(st, n, p)
	if err != nil {
		return Pod{}, undo(err)
	}
	t := time.Now()
	raw, err := cni.AddNetworkList(ctx, list, rt)
	p.AddTime = time.Since(t)
	// A runtime calls DEL after an ADD that failed, whatever it did, and so whether or not the
	// caller still waits.
	undoAll := func(cause error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return undo(errors.Join(cause, cni.DelNetworkList(ctx, list, rt)))
	}
	if err != nil {
		return Pod{}, undoAll(fmt.Errorf("CNI ADD of %s on %s: %w", p.Name, n.Name, err))
	}
	result, err := types100.NewResultFromResult(raw)
	if err != nil {
		return Pod{}, undoAll(fmt.Errorf("CNI result: %w", err))
	}
	for _, ip := range result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok && a.Unmap().Is4() {
			p.IPv4 = a.Unmap()
		} else if ok {
			p.IPv6 = a
		}
	}
	if !p.IPv4.IsValid() && !p.IPv6.IsValid() {
		return Pod{}, undoAll(fmt.Errorf("the CNI plugin gave %s no address", p.Name))
	}
	argv := s.serveCommand(st.Self, p.Name, p.Ports, spec.peers)
	p.Server, err = machine.Daemon{Namespace: netns, Log: s.path("logs", "pod-"+p.Name+".log"), Argv: argv, Ready: true, Timeout: s.cfg.StartTimeout}.Start()
	if err != nil {
		return Pod{}, undoAll(err)
	}
	st.Pods = append(st.Pods, p)
	if err := errors.Join(st.save(s.stateFile()), s.writeHosts(st)); err != nil {
		return Pod{}, undoAll(err)
	}
	s.say("pod %-8s on %s: %s  %s (CNI ADD %.1f ms)", p.Name, p.Node, s.paint.Bold(addresses(p)), labelText(p.Labels), p.AddTime.Seconds()*1000)
	return p.public(), nil
}

// serveCommand is the process of a pod, or of the world outside.
func (s *Sandbox) serveCommand(self []string, name string, ports []uint16, peers []peer) []string {
	argv := append(slices.Clone(self), "serve", "--name", name, "--ready-fd", "3", "--hosts", s.hostsFile())
	for _, port := range ports {
		argv = append(argv, "--port", fmt.Sprint(port))
	}
	for _, to := range peers {
		argv = append(argv, "--talk-to", to.String())
	}
	return argv
}

// Remove ends a pod's process, detaches it with CNI DEL, and removes its namespace.
func (s *Sandbox) Remove(ctx context.Context, name string) error {
	return s.withLock(func() error {
		st, err := s.running()
		if err != nil {
			return err
		}
		p := st.pod(name)
		if p == nil {
			return fmt.Errorf("no pod %q in sandbox %q: there are %s", name, s.cfg.Name, podNames(st))
		}
		if err := s.endPod(p); err != nil {
			return err
		}
		cni, list, rt, err := s.runtimeFor(st, st.node(p.Node), p)
		if err != nil {
			return err
		}
		t := time.Now()
		if err := cni.DelNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("CNI DEL of %s: %w", name, err)
		}
		took := time.Since(t)
		if err := machine.RemoveNamespace(s.netns("pod-" + name)); err != nil {
			return err
		}
		st.Pods = slices.DeleteFunc(st.Pods, func(q *pod) bool { return q == p })
		if err := errors.Join(st.save(s.stateFile()), s.writeHosts(st)); err != nil {
			return err
		}
		s.say("pod %s removed (CNI DEL %.1f ms)", name, took.Seconds()*1000)
		return nil
	})
}

// newPod checks a specification and fills in what it leaves out.
func newPod(st *state, spec PodSpec) (*pod, error) {
	var errs []error
	if !nameForm.MatchString(spec.Name) {
		errs = append(errs, fmt.Errorf("pod name %q: want 1 to 32 characters of a-z, 0-9 and -", spec.Name))
	}
	if st.pod(spec.Name) != nil || st.node(spec.Name) != nil || spec.Name == worldName {
		errs = append(errs, fmt.Errorf("the name %q is taken in this sandbox", spec.Name))
	}
	spec.Namespace = cmp.Or(spec.Namespace, "default")
	if !nameForm.MatchString(spec.Namespace) {
		errs = append(errs, fmt.Errorf("namespace %q: want 1 to 32 characters of a-z, 0-9 and -", spec.Namespace))
	}
	if spec.Node == "" {
		fewest := -1
		for _, n := range st.Nodes {
			here := 0
			for _, p := range st.Pods {
				if p.Node == n.Name {
					here++
				}
			}
			if fewest < 0 || here < fewest {
				spec.Node, fewest = n.Name, here
			}
		}
	}
	if st.node(spec.Node) == nil {
		var names []string
		for _, n := range st.Nodes {
			names = append(names, n.Name)
		}
		errs = append(errs, fmt.Errorf("no node %q: there are %s", spec.Node, strings.Join(names, ", ")))
	}
	if len(spec.Ports) == 0 {
		spec.Ports = []uint16{80}
	}
	for _, p := range spec.Ports {
		if p == 0 {
			errs = append(errs, errors.New("port 0 can't be listened on: want 1 to 65535"))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails
	return &pod{
		Name: spec.Name, Namespace: spec.Namespace, Node: spec.Node, Labels: spec.Labels,
		Ports: spec.Ports, ContainerID: hex.EncodeToString(id),
	}, nil
}

// runtimeFor prepares libcni as a runtime on the node would, with the configuration that the agent
// wrote and the pod's labels in args.cni.labels, the convention for runtimes without Kubernetes.
func (s *Sandbox) runtimeFor(st *state, n *node, p *pod) (*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf, error) {
	conf, err := os.ReadFile(s.cniConf(n.Name))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("CNI configuration of %s: %w", n.Name, err)
	}
	conf, err = withLabels(conf, p.Labels)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", s.cniConf(n.Name), err)
	}
	list, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", s.cniConf(n.Name), err)
	}
	rt := &libcni.RuntimeConf{
		ContainerID: p.ContainerID, NetNS: s.netns("pod-" + p.Name), IfName: "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name},
			{"K8S_POD_UID", p.ContainerID[:32]},
		},
	}
	plugin := &nodeExec{namespace: s.netns(n.Name), env: s.nodeEnv(n.Name, s.flowSocket(n.Name))}
	return libcni.NewCNIConfigWithCacheDir([]string{st.BinDir}, s.path("cni-cache"), plugin), list, rt, nil
}

// withLabels adds the labels to every plugin of a configuration list.
func withLabels(conf []byte, labels map[string]string) ([]byte, error) {
	var list map[string]any
	if err := json.Unmarshal(conf, &list); err != nil {
		return nil, err
	}
	plugins, ok := list["plugins"].([]any)
	if !ok {
		return nil, errors.New("no plugins in it")
	}
	type label struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	all := []label{}
	for k, v := range labels {
		all = append(all, label{k, v})
	}
	slices.SortFunc(all, func(a, b label) int { return strings.Compare(a.Key, b.Key) })
	for _, p := range plugins {
		if p, ok := p.(map[string]any); ok {
			p["args"] = map[string]any{"cni": map[string]any{"labels": all}}
		}
	}
	return json.Marshal(list)
}

// nodeExec runs CNI plugins on a node: in its network namespace, where its runtime would be.
type nodeExec struct {
	version.PluginDecoder
	namespace string
	env       []string
}

// ExecPlugin runs the plugin and returns its output, or the error that it printed.
func (e *nodeExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = append(environ, e.env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := machine.InNamespace(e.namespace, cmd.Start); err != nil {
		return nil, err
	}
	err := cmd.Wait()
	if err == nil {
		return stdout.Bytes(), nil
	}
	var said types.Error
	if json.Unmarshal(stdout.Bytes(), &said) == nil && said.Msg != "" {
		return nil, &said
	}
	return nil, fmt.Errorf("%s: %w: %s", path, err, strings.TrimSpace(stderr.String()))
}

// FindInPath finds a plugin's program.
func (e *nodeExec) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// endPod ends every process in the pod's namespace.
func (s *Sandbox) endPod(p *pod) error {
	id, err := machine.NamespaceID(s.netns("pod-" + p.Name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = machine.EndAll(map[machine.Inode]bool{id: true}, 2*time.Second)
	return err
}

// writeHosts writes the hosts file that commands run in the sandbox see.
func (s *Sandbox) writeHosts(st *state) error {
	var b strings.Builder
	if f, err := os.Open("/etc/hosts"); err == nil {
		_, err = io.Copy(&b, io.LimitReader(f, 1<<20))
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	add := func(name string, addrs ...netip.Addr) {
		for _, a := range addrs {
			if a.IsValid() {
				fmt.Fprintf(&b, "%s %s\n", a, name)
			}
		}
	}
	b.WriteString("\n# sandbox " + st.Name + "\n")
	world := worldHost()
	add(world.Name, world.IPv4, world.IPv6)
	for _, n := range st.Nodes {
		add(n.Name, n.IPv4, n.IPv6)
	}
	for _, p := range st.Pods {
		add(p.Name, p.IPv4, p.IPv6)
	}
	return os.WriteFile(s.hostsFile(), []byte(b.String()), 0o644)
}

func (p *pod) public() Pod {
	return Pod{Name: p.Name, Node: p.Node, IPv4: p.IPv4, IPv6: p.IPv6, Ports: p.Ports, AddTime: Duration(p.AddTime)}
}

func addresses(p *pod) string {
	var out []string
	for _, a := range []netip.Addr{p.IPv4, p.IPv6} {
		if a.IsValid() {
			out = append(out, a.String())
		}
	}
	return strings.Join(out, " ")
}

func labelText(labels map[string]string) string {
	var out []string
	for k, v := range labels {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func podNames(st *state) string {
	if len(st.Pods) == 0 {
		return "none"
	}
	var out []string
	for _, p := range st.Pods {
		out = append(out, p.Name)
	}
	return strings.Join(out, ", ")
}
