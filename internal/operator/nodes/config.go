// Package nodes reports to Kubernetes which nodes have a network, by taints and conditions of
// Nodes, and removes the CiliumNodes of nodes that are gone.
//
// It writes Node.spec.taints, as far as the agent's own taint goes, and the condition
// NetworkUnavailable of Nodes. It deletes CiliumNodes that have no Node, no owner and no annotation
// that forbids it, when two looks an interval apart found them so. Where agents use a key-value
// store it deletes the keys of nodes that are gone, at once when a Node is deleted.
package nodes

import (
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/internal/validate"
)

// Config defines how nodes are looked after. Use [Defaults].
type Config struct {
	// Meter, if not nil, records what is collected.
	Meter *rounds.Meter

	// RemoveTaints and SetTaints are whether the taint is removed from nodes whose agent is ready,
	// and set on those whose agent exists but is not ready.
	RemoveTaints, SetTaints bool
	// TaintKey is the key of the taint by which nodes keep pods away until their agent is ready.
	TaintKey string
	// SetCondition decides whether the condition NetworkUnavailable becomes False when the agent is
	// ready.
	SetCondition bool
	// Workers is how many nodes are looked after at once.
	Workers int
	// AgentLabels selects the agents' pods in AgentNamespace; empty for the namespace of the
	// operator.
	AgentLabels    string
	AgentNamespace string
	// GCInterval is the time between two looks for CiliumNodes and keys of nodes without a Node; 0
	// for never.
	GCInterval time.Duration
}

// Defaults returns the configuration of an operator that is given no options.
func Defaults() Config {
	return Config{
		RemoveTaints: true, SetCondition: true, TaintKey: "node.cilium.io/agent-not-ready", Workers: 10, AgentLabels: "k8s-app=cilium",
		GCInterval: 5 * time.Minute,
	}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.RemoveTaints, "remove-cilium-node-taints", c.RemoveTaints, "remove the taint --agent-not-ready-taint-key from nodes whose agent is ready")
	fs.BoolVar(&c.SetTaints, "set-cilium-node-taints", c.SetTaints, "set the taint --agent-not-ready-taint-key on nodes whose agent is there but not ready")
	fs.StringVar(&c.TaintKey, "agent-not-ready-taint-key", c.TaintKey, "key of the taint that keeps pods away from a node until its agent is ready")
	fs.BoolVar(&c.SetCondition, "set-cilium-is-up-condition", c.SetCondition, "set the condition NetworkUnavailable of nodes whose agent is ready to False")
	fs.IntVar(&c.Workers, "taint-sync-workers", c.Workers, "how many nodes are looked after at once")
	fs.StringVar(&c.AgentLabels, "cilium-pod-labels", c.AgentLabels, "label selector of the agents' pods")
	fs.StringVar(&c.AgentNamespace, "cilium-pod-namespace", c.AgentNamespace, "namespace of the agents' pods; empty for that of the operator")
	fs.DurationVar(&c.GCInterval, "nodes-gc-interval", c.GCInterval, "how often CiliumNodes, and keys of nodes in the key-value store, without a Node are looked for; 0 for never")
}

// Validate checks every option and joins all faults in one error.
func (c *Config) Validate() error {
	var errs validate.Errors
	if faults := validation.IsQualifiedName(c.TaintKey); len(faults) > 0 {
		errs.Add("--agent-not-ready-taint-key: %q: %s", c.TaintKey, faults[0])
	}
	errs.If(c.Workers < 1, "--taint-sync-workers: %d must be at least 1", c.Workers)
	if s, err := labels.Parse(c.AgentLabels); err != nil {
		errs.Add("--cilium-pod-labels: %w", err)
	} else if s.Empty() {
		errs.Add("--cilium-pod-labels: an empty selector would take every pod for an agent")
	}
	errs.Interval("nodes-gc-interval", c.GCInterval)
	return errs.Err()
}
