package kube

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/region"
	"github.com/hawser-net/hawser/internal/validate"
)

// Modes of a cluster.
const (
	Full    = "full" // with nodes
	APIOnly = "api"  // an API server with its controllers, and no node
)

// Networks of a cluster.
const (
	Hawser = "hawser" // this product, by its manifests
	PTP    = "ptp"    // Debian's plugins ptp and host-local, with static routes between nodes
	None   = "none"   // none yet: the user installs one. The nodes have this product's image
)

// Config is what a cluster is made of. Use Defaults and change what differs.
type Config struct {
	// Name identifies a cluster on a machine: 1 to 32 characters of a-z, 0-9 and -.
	Name string
	// ID is the cluster's number, 1 to 255, by which it can be connected with others, or 0.
	// Addresses follow from it.
	ID int
	// Root is the directory of all sandboxes, Data that of what they keep on disk.
	Root, Data string
	// Mode is Full or APIOnly.
	Mode string
	// Nodes is the number of nodes, 1 to 20.
	Nodes int
	// DualStack gives pods and Services IPv6 addresses besides IPv4.
	DualStack bool
	// CNI is the network: Hawser, PTP or None.
	CNI string
	// Manifest is a file of the product's objects, as the chart renders them with other values;
	// empty for that of the checkout.
	Manifest string
	// Store keeps identities, nodes and addresses of pods: Etcd or Consul; empty for objects of
	// Kubernetes.
	Store string
	// Cloud is the cloud that the nodes are in, one of region.Providers; empty for none.
	Cloud string
	// InstanceType is that of the nodes in their cloud, empty for its default.
	InstanceType string
	// KubeProxy runs kube-proxy on every node.
	KubeProxy bool
	// Install says that missing Debian packages may be installed.
	Install bool
	// BinDir holds this product's programs; empty for the directory of Self.
	BinDir string
	// Self is the command that runs the hidden subcommands (etcd, kube-node, kube-forward). They
	// are appended to it.
	Self []string
	// StartTimeout bounds how long Up waits for each part.
	StartTimeout time.Duration
	// Terminal says that progress goes to a terminal.
	Terminal bool
}

// Defaults returns a cluster of two nodes on Hawser, without kube-proxy.
func Defaults() Config {
	c := Config{
		Name: "kube", Root: "/run/hawser-sandbox", Data: "/var/lib/hawser-sandbox", Mode: Full, Nodes: 2, CNI: Hawser, StartTimeout: 3 * time.Minute,
	}
	if exe, err := os.Executable(); err == nil {
		c.Self = []string{exe, "sandbox"}
	}
	return c
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// Validate checks every field and joins all faults in one error.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.If(!nameForm.MatchString(c.Name), "cluster name %q: want 1 to 32 characters of a-z, 0-9 and -", c.Name)
	for _, dir := range []string{c.Root, c.Data} {
		errs.If(!filepath.IsAbs(dir), "directory %q is not an absolute path", dir)
	}
	errs.If(c.Root == c.Data, "directory %q can't be both: one holds mounts, the other one is thrown away file by file", c.Root)
	if !slices.Contains([]string{Full, APIOnly}, c.Mode) {
		errs.Add("kubernetes %q: want %s or %s", c.Mode, Full, APIOnly)
	}
	errs.If(c.ID < 0 || c.ID > maxClusterID, "cluster id %d: want 1 to %d, or 0 for a cluster that is never connected with others", c.ID, maxClusterID)
	errs.If(c.Nodes < 1 || c.Nodes > maxNodes, "%d nodes: want 1 to %d", c.Nodes, maxNodes)
	if !slices.Contains([]string{Hawser, PTP, None}, c.CNI) {
		errs.Add("cni %q: want %s, %s or %s", c.CNI, Hawser, PTP, None)
	}
	if !slices.Contains([]string{"", Etcd, Consul}, c.Store) {
		errs.Add("store %q: want %s, %s or none", c.Store, Etcd, Consul)
	}
	errs.If(c.Store != "" && (c.CNI != Hawser || c.Mode != Full), "a store of identities is for nodes on the network "+Hawser)
	errs.If(c.Cloud != "" && !slices.Contains(region.Providers(), c.Cloud), "cloud %q: want one of %s", c.Cloud, strings.Join(region.Providers(), ", "))
	errs = append(errs, c.validateCloud())
	errs.If(len(c.Self) == 0, "the running program's path is unknown")
	errs.If(c.StartTimeout <= 0, "start timeout %v is not positive", c.StartTimeout)
	return errs.Err()
}
