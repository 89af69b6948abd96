package mesh

import (
	"github.com/spf13/pflag"
)

// Config defines what is written. Start from [Defaults].
type Config struct {
	// Services writes services that are shared, Nodes nodes, identities and addresses of pods.
	Services, Nodes bool
	// GlobalNamespaces shares services of namespaces without an annotation.
	GlobalNamespaces bool

	// Objects means that agents keep their state as objects of Kubernetes, which the operator must
	// mirror to the store. It is no flag; nor are the cluster's name and ID below.
	Objects     bool
	ClusterName string
	ClusterID   uint32
	// MaxConnectedClusters is 255, which 0 stands for too, or 511: it determines which identity IDs
	// are this cluster's.
	MaxConnectedClusters uint32
}

// Defaults returns the configuration of an operator that is given no options.
func Defaults() Config { return Config{Services: true, Nodes: true, GlobalNamespaces: true} }

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.Services, "synchronize-k8s-services", c.Services, "with Kubernetes and --kvstore: write services that are shared with other clusters into the store")
	fs.BoolVar(&c.Nodes, "synchronize-k8s-nodes", c.Nodes,
		"with Kubernetes, --kvstore and --identity-allocation-mode=crd: write nodes, identities and pods' addresses into the store for other clusters")
	fs.BoolVar(&c.GlobalNamespaces, "clustermesh-default-global-namespace", c.GlobalNamespaces,
		"share services of namespaces without the annotation clustermesh.cilium.io/global")
}

// Whole reports whether all that other clusters read is written here, so that canaries can mark
// when it is complete.
func (c Config) Whole() bool { return c.Services && c.Nodes && c.Objects }
