// Package endpoints keeps CiliumEndpoints in line with Pods: it deletes those whose pod is gone,
// and restarts pods that started before there was a network to give them one.
//
// It deletes CiliumEndpoints and Pods, and writes nothing else.
package endpoints

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/internal/validate"
)

// Config defines how endpoints are looked after. Use [Defaults].
type Config struct {
	// Meter, if not nil, records what is collected.
	Meter *rounds.Meter

	// GCInterval is the time between two looks for CiliumEndpoints without a pod. 0 means that
	// there are to be none at all: they are deleted once.
	GCInterval time.Duration
	// NoObjects means that agents write no CiliumEndpoints: they are deleted once.
	NoObjects bool
	// Sliced means that there are CiliumEndpointSlices: a pod that one of them names has an
	// endpoint, even if its agent has not been restarted since there were no CiliumEndpoints. It is
	// no flag.
	Sliced bool
	// RestartInterval is the time between two looks for pods without an endpoint, of those that
	// RestartSelector selects; 0 for never. The selector may be a word for all pods or for none.
	RestartInterval time.Duration
	RestartSelector string
}

// Defaults returns the configuration of an operator that is given no options.
func Defaults() Config {
	return Config{GCInterval: 5 * time.Minute, RestartInterval: 15 * time.Second, RestartSelector: "k8s-app=kube-dns"}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.GCInterval, "cilium-endpoint-gc-interval", c.GCInterval, "how often CiliumEndpoints without a pod are looked for; 0 to delete all of them once")
	fs.BoolVar(&c.NoObjects, "disable-endpoint-crd", c.NoObjects, "agents write no CiliumEndpoints: delete all of them once")
	fs.DurationVar(&c.RestartInterval, "unmanaged-pod-watcher-interval", c.RestartInterval, "how often pods without an endpoint are looked for; 0 for never")
	fs.StringVar(&c.RestartSelector, "pod-restart-selector", c.RestartSelector, "label selector of pods that are restarted if they have no endpoint; all for all pods, none for no pods")
}

// Kept reports whether CiliumEndpoints are kept: references to identities are.
func (c *Config) Kept() bool { return c.GCInterval > 0 && !c.NoObjects }

// Validate checks every option and joins all faults in one error.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.Interval("cilium-endpoint-gc-interval", c.GCInterval)
	errs.Interval("unmanaged-pod-watcher-interval", c.RestartInterval)
	_, err := c.restarted()
	return append(errs, err).Err()
}

// restarted returns the selector of pods that are restarted, nil for none of them. To Kubernetes
// and to Cilium an empty one selects all pods; a ConfigMap cannot set an option empty.
func (c *Config) restarted() (labels.Selector, error) {
	switch c.RestartSelector {
	case "all":
		return labels.Everything(), nil
	case "none":
		return nil, nil
	}
	selector, err := labels.Parse(c.RestartSelector)
	if err != nil {
		return nil, fmt.Errorf("--pod-restart-selector: %w", err)
	}
	return selector, nil
}
