package sandbox

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// Status describes a running sandbox.
type Status struct {
	Name        string       `json:"name"`
	Directory   string       `json:"directory"`
	Created     time.Time    `json:"created"`
	RoutingMode string       `json:"routingMode"`
	PolicyDir   string       `json:"policyDirectory"`
	Etcd        string       `json:"etcd"` // endpoint, as seen from the machine
	EtcdAlive   bool         `json:"etcdAlive"`
	Nodes       []NodeStatus `json:"nodes"`
	Pods        []PodStatus  `json:"pods"`
}

// NodeStatus describes a node. Health is "ok", or what is wrong with its agent.
type NodeStatus struct {
	Name     string   `json:"name"`
	Address  []string `json:"addresses"`
	PodCIDRs []string `json:"podCIDRs"`
	Socket   string   `json:"socket"`
	Log      string   `json:"log"`
	AgentPID int      `json:"agentPID"`
	Health   string   `json:"health"`
}

// PodStatus describes a pod.
type PodStatus struct {
	Pod
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
	Serving   bool              `json:"serving"` // its process runs
}

// Healthy reports whether everything that should run does, and every agent is well.
func (st *Status) Healthy() bool {
	ok := st.EtcdAlive
	for _, n := range st.Nodes {
		ok = ok && n.Health == "ok"
	}
	for _, p := range st.Pods {
		ok = ok && p.Serving
	}
	return ok
}

// Status reads the state of a running sandbox and asks its agents for their health.
func (s *Sandbox) Status(ctx context.Context) (*Status, error) {
	st, err := s.running()
	if err != nil {
		return nil, err
	}
	out := &Status{
		Name: st.Name, Directory: s.dir(), Created: st.Created, RoutingMode: st.RoutingMode, PolicyDir: s.PolicyDir(),
		Etcd: s.EtcdEndpoint(), EtcdAlive: st.Etcd.Alive(), Nodes: []NodeStatus{}, Pods: []PodStatus{},
	}
	for _, n := range st.Nodes {
		ns := NodeStatus{
			Name: n.Name, Address: []string{n.IPv4.String(), n.IPv6.String()}, PodCIDRs: strings.Split(prefixes(n), ", "),
			Socket: s.socket(n.Name), Log: s.agentLog(n.Name), AgentPID: n.Agent.PID, Health: "ok",
		}
		if !n.Agent.Alive() {
			ns.Health = "the agent is not running"
		} else if err := s.agentHealth(ctx, n.Name); err != nil {
			ns.Health = err.Error()
		}
		out.Nodes = append(out.Nodes, ns)
	}
	for _, p := range st.Pods {
		out.Pods = append(out.Pods, PodStatus{Pod: p.public(), Namespace: p.Namespace, Labels: p.Labels, Serving: p.Server.Alive()})
	}
	return out, nil
}

// Print writes the status as tables.
func (st *Status) Print(w io.Writer, colour bool) {
	paint := machine.Palette(colour)
	etcd := paint.Green("ok")
	if !st.EtcdAlive {
		etcd = paint.Red("etcd is not running")
	}
	fmt.Fprintf(w, "sandbox %s, up since %s, routing mode %s\n", paint.Bold(st.Name), st.Created.Format(time.DateTime), st.RoutingMode)
	fmt.Fprintf(w, "etcd      %s  %s\npolicies  %s\n\n", st.Etcd, etcd, st.PolicyDir)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NODE\tADDRESSES\tPOD RANGES\tAGENT\tHEALTH")
	for _, n := range st.Nodes {
		// The last column may be coloured: the table counts the bytes of the others.
		health := paint.Green(n.Health)
		if n.Health != "ok" {
			health = paint.Red(n.Health)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", n.Name, strings.Join(n.Address, " "), strings.Join(n.PodCIDRs, " "), n.AgentPID, health)
	}
	_ = t.Flush()
	if len(st.Pods) == 0 {
		fmt.Fprintln(w, "\nno pods: start one with `hawser sandbox run NAME`")
		return
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "POD\tNODE\tIPV4\tIPV6\tPORTS\tLABELS\tADD\tSERVER")
	for _, p := range st.Pods {
		var ports []string
		for _, port := range p.Ports {
			ports = append(ports, fmt.Sprint(port))
		}
		server := paint.Green("ok")
		if !p.Serving {
			server = paint.Red("not running")
		}
		v6 := "-"
		if p.IPv6.IsValid() {
			v6 = p.IPv6.String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%.1f ms\t%s\n", p.Name, p.Node, p.IPv4, v6, strings.Join(ports, ","),
			labelText(p.Labels), time.Duration(p.AddTime).Seconds()*1000, server)
	}
	_ = t.Flush()
}
