package kube

import (
	"net/netip"
	"path/filepath"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// Info describes a running cluster for tests: where its parts are, and which processes they are.
type Info struct {
	Name       string
	Kubeconfig string
	// ID is its number, by which it can be connected with others.
	ID        int
	DualStack bool
	CNI       string
	// World and ControlPlane are paths that keep the network namespaces of these two places.
	World, ControlPlane string
	// WorldIPv4 and WorldIPv6 are the addresses of the host on the underlay that is not of the
	// cluster.
	WorldIPv4, WorldIPv6 netip.Addr
	// Store is what keeps identities, if it is not Kubernetes; StoreSocket is where it listens, and
	// StoreDir has its data.
	Store, StoreSocket, StoreDir string
	// Cloud is what the nodes are in, empty if in none, and CloudSocket where it is looked at and
	// disturbed.
	Cloud, CloudSocket string
	// EtcdDir has the data of Kubernetes' own etcd.
	EtcdDir string
	// Processes are those of the control plane, by the names of their programs.
	Processes map[string]machine.Process
	Nodes     []NodeInfo
}

// NodeInfo is one node.
type NodeInfo struct {
	Name       string
	IPv4, IPv6 netip.Addr // on the underlay; IPv6 is there without dual stack, too
	// Pods4 and Pods6 are the ranges of its pods; Pods6 is invalid without dual stack.
	Pods4, Pods6 netip.Prefix
	// Dir is the node's directory: what is /run on the node is run there, /var is var, /etc/cni is
	// cni.
	Dir string
	// Netns is the path that keeps the node's network namespace.
	Netns string
	// Cgroup is the directory of the node's cgroup of version 2, with everything that runs on it;
	// empty if the machine has none of that version.
	Cgroup string
	// Init is the node's first process.
	Init machine.Process
}

// Inspect reads what there is of the cluster called name. It is one reading: a node that is killed
// and started has another first process afterwards.
func Inspect(name string) (*Info, error) {
	cfg := Defaults()
	cfg.Name = name
	c := &Cluster{cfg: cfg}
	st, err := c.load()
	if err != nil {
		return nil, err
	}
	info := &Info{
		Name: st.Name, ID: st.ID, Kubeconfig: c.Kubeconfig(), DualStack: st.DualStack, CNI: st.CNI, Processes: st.Processes,
		Store: st.Store, StoreSocket: c.storeSocket(), StoreDir: c.storeDir(), EtcdDir: c.etcdDir(),
		Cloud: st.Cloud, CloudSocket: c.cloudSocket(),
		World: c.netns(worldName), ControlPlane: c.netns(masterName),
		WorldIPv4: st.plan().world().IPv4, WorldIPv6: st.plan().world().IPv6,
	}
	groups, err := findCgroups()
	if err != nil {
		return nil, err
	}
	for _, n := range st.Nodes {
		cgroup := ""
		if groups.unified != "" {
			cgroup = filepath.Join(groups.unified, nodeCgroup(st.Name, n.Name))
		}
		info.Nodes = append(info.Nodes, NodeInfo{
			Name: n.Name, IPv4: n.IPv4, IPv6: n.IPv6, Pods4: n.Pods4, Pods6: n.Pods6, Dir: c.nodeDir(n.Name), Netns: c.netns(n.Name), Cgroup: cgroup,
			Init: n.Init,
		})
	}
	return info, nil
}
