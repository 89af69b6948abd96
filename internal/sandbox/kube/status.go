package kube

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/kube/image"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// Status describes a cluster.
type Status struct {
	Name       string    `json:"name"`
	Kubernetes string    `json:"kubernetes"` // version
	Created    time.Time `json:"created"`
	Kubeconfig string    `json:"kubeconfig"`
	Server     string    `json:"server"` // URL, as seen from the machine
	CNI        string    `json:"cni"`
	KubeProxy  bool      `json:"kubeProxy"`
	Cloud      string    `json:"cloud,omitempty"` // that the nodes are in
	// Page is the address of the page of flows, and Relay where their relay is asked; empty if
	// there is none.
	Page      string          `json:"page,omitempty"`
	Relay     string          `json:"relay,omitempty"`
	Processes []ProcessStatus `json:"processes"`
	Nodes     []NodeStatus    `json:"nodes"`
}

// ProcessStatus describes a process of the control plane. Health is "ok", or what is wrong.
type ProcessStatus struct {
	Name   string `json:"name"`
	PID    int    `json:"pid"`
	Log    string `json:"log"`
	Health string `json:"health"`
}

// NodeStatus describes a node. Health is "ok", or what is wrong.
type NodeStatus struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	PodCIDRs  []string `json:"podCIDRs"`
	PID       int      `json:"pid"` // of its first process
	Logs      string   `json:"logs"`
	Health    string   `json:"health"`
}

// Healthy reports whether everything that should run does, and every node is Ready.
func (s *Status) Healthy() bool {
	for _, p := range s.Processes {
		if p.Health != "ok" {
			return false
		}
	}
	for _, n := range s.Nodes {
		if n.Health != "ok" {
			return false
		}
	}
	return true
}

// Status reads the state of a cluster and asks its API server.
func (c *Cluster) Status(ctx context.Context) (*Status, error) {
	st, err := c.load()
	if err != nil {
		return nil, err
	}
	out := &Status{
		Name: st.Name, Kubernetes: parts.Version, Created: st.Created, Kubeconfig: c.Kubeconfig(), Server: loopbackURL(st.Port),
		CNI: st.CNI, KubeProxy: st.KubeProxy, Cloud: st.Cloud, Processes: []ProcessStatus{}, Nodes: []NodeStatus{},
	}
	if st.Flows {
		out.Page, out.Relay = c.pageURL(st), "unix://"+c.relaySocket()
	}
	api, err := c.client(st.Port)
	if err != nil {
		return nil, err
	}
	readyErr := api.ready(ctx)
	for _, name := range slices.Sorted(maps.Keys(st.Processes)) {
		p := ProcessStatus{Name: name, PID: st.Processes[name].PID, Log: c.log(name), Health: "ok"}
		switch {
		case !st.Processes[name].Alive():
			p.Health = "does not run"
		case name == "kube-apiserver" && readyErr != nil:
			p.Health = readyErr.Error()
		}
		out.Processes = append(out.Processes, p)
	}
	objects := map[string]nodeObject{}
	if readyErr == nil {
		list, err := api.nodes(ctx)
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			objects[o.Metadata.Name] = o
		}
	}
	for _, n := range st.Nodes {
		ns := NodeStatus{Name: n.Name, Addresses: n.addresses(), PodCIDRs: n.podCIDRs(), PID: n.Init.PID, Logs: c.nodeDir(n.Name) + "/var/log", Health: "ok"}
		if st.Cloud != "" {
			ns.PodCIDRs = []string{} // single addresses, which Cloud shows
		}
		object, known := objects[n.Name]
		ready, why := object.ready(time.Time{})
		switch {
		case !n.Init.Alive():
			ns.Health = "off"
		case !known:
			ns.Health = "unknown to the API server"
		case !ready:
			ns.Health = why
		}
		out.Nodes = append(out.Nodes, ns)
	}
	return out, nil
}

// Print writes the status as tables.
func (s *Status) Print(w io.Writer, colour bool) {
	paint := machine.Palette(colour)
	health := func(text string) string {
		if text == "ok" {
			return paint.Green(text)
		}
		return paint.Red(text)
	}
	network := s.CNI
	if s.KubeProxy {
		network += " with kube-proxy"
	}
	if s.Cloud != "" {
		network += " in the cloud " + s.Cloud
	}
	fmt.Fprintf(w, "cluster %s, up since %s, Kubernetes %s, network %s\n", paint.Bold(s.Name), s.Created.Format(time.DateTime), s.Kubernetes, network)
	fmt.Fprintf(w, "KUBECONFIG=%s  (%s)\n", s.Kubeconfig, s.Server)
	if s.Page != "" {
		fmt.Fprintf(w, "flows: %s\n", s.Page)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CONTROL PLANE\tPID\tLOG\tHEALTH")
	for _, p := range s.Processes {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", p.Name, p.PID, p.Log, health(p.Health))
	}
	_ = t.Flush()
	if len(s.Nodes) == 0 {
		return
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "NODE\tADDRESSES\tPOD RANGES\tLOGS\tHEALTH")
	for _, n := range s.Nodes {
		if s.Cloud != "" {
			n.PodCIDRs = []string{"of the cloud"}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", n.Name, strings.Join(n.Addresses, " "), strings.Join(n.PodCIDRs, " "), n.Logs, health(n.Health))
	}
	_ = t.Flush()
}

// chartFlags are the values that the chart needs in this cluster, as flags of helm.
func (c *Cluster) chartFlags() string {
	var b strings.Builder
	if groups, err := findCgroups(); err == nil && groups.unified != "" && groups.unified != cgroupRoot {
		fmt.Fprintf(&b, " --set agent.cgroupRoot=%s", groups.unified)
	}
	if !c.cfg.KubeProxy {
		fmt.Fprintf(&b, " --set kubeProxyReplacement=true --set k8s.serviceHost=%s --set k8s.servicePort=%d", plan(c.cfg.ID).master().IPv4, apiPort)
	}
	if id := c.cfg.ID; id != 0 {
		fmt.Fprintf(&b, " --set cluster.name=%s --set cluster.id=%d --set clustermesh.store.type=etcd --set clustermesh.store.secretName=%s"+
			" --set-string 'clustermesh.store.options.etcd\\.config=%s/config.yaml'", c.cfg.Name, id, meshStoreSecret, meshStorePath)
	}
	return b.String()
}

// PrintNext prints what to try next.
func (c *Cluster) PrintNext(w io.Writer) {
	paint := c.paint
	name := ""
	if c.cfg.Name != Defaults().Name {
		name = " --name " + c.cfg.Name
	}
	sandbox := machine.Typed(c.cfg.Self...)
	fmt.Fprintf(w, "\n%s\n  export KUBECONFIG=%s\n", paint.Bold("Next:"), c.Kubeconfig())
	if c.cfg.Mode == Full && c.cfg.CNI == None {
		fmt.Fprintf(w, "  helm install hawser deploy/helm/hawser --namespace kube-system%s\n", c.chartFlags())
	}
	if c.cfg.Mode == Full {
		fmt.Fprintf(w, `  %[3]s kubectl%[1]s -- get nodes,pods -A -o wide
  %[3]s kubectl%[1]s -- create deployment web --image=%[2]s --replicas=3 -- /agnhost netexec
  %[3]s exec%[1]s n1 -- ctr -n k8s.io containers ls     a shell command on a node
  %[3]s node kill%[1]s n2                               a power cut, and
  %[3]s node start%[1]s n2                              its end
`, name, image.AgnhostName, sandbox)
	}
	if st, err := c.load(); err == nil && st.Flows {
		fmt.Fprintf(w, "  %s --follow   who talks to whom, on all nodes\n", c.observeCommand())
		if url := c.pageURL(st); url != "" {
			fmt.Fprintf(w, "  %s   the same in a browser\n", url)
		}
	}
	if st, err := c.load(); err == nil && st.Cloud != "" {
		fmt.Fprintf(w, "  %s cloud%s   what the cloud has; its subcommands have it fail\n", sandbox, name)
	}
	if c.cfg.ID != 0 {
		fmt.Fprintf(w, "  %s clustermesh connect %s OTHER      connect it with a cluster that has another --cluster-id\n", c.program(), c.cfg.Name)
	}
	fmt.Fprintf(w, "  %[2]s status%[1]s\n  %[2]s down%[1]s\n", name, sandbox)
}
