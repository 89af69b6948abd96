package identities

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/validate"
)

// Control defines how the operator makes identities. Use [ControlDefaults].
type Control struct {
	// Labels, LabelPrefixFile and Fixed are what agents have as options of the same names.
	Labels          []string
	LabelPrefixFile string
	Fixed           map[string]string
	// WellKnown gives certain system pods identities that every cluster has.
	WellKnown bool
	// Budget is how many identities may exist that only pods without a node need; below 0 for any.
	Budget int

	// Resync is the time between two looks at everything, MaxBackoff the longest pause between two
	// tries of what failed. Tests shorten them.
	Resync, MaxBackoff time.Duration
	// Agents means that agents make identities too. Then identities that such an agent writes to
	// its endpoints are left alone; see 0005 in docs/design.
	Agents bool
	// Await, if not nil, returns when it is known which labels count, and the store may be written;
	// nothing is made or collected before. It returns early if its context ends.
	Await func(context.Context)
	// Workers is how many identities, and how many endpoints, are written at a time.
	Workers int
}

// ControlDefaults returns the configuration of an operator that is given no options.
func ControlDefaults() Control {
	return Control{Fixed: map[string]string{}, WellKnown: true, Budget: 1000, Resync: 10 * time.Minute, MaxBackoff: time.Minute, Workers: 8}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Control) Flags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Labels, "labels", c.Labels, "label prefixes that make or (with !) do not make an identity, added to the default list; as for the agents")
	fs.StringVar(&c.LabelPrefixFile, "label-prefix-file", c.LabelPrefixFile, "JSON file of label prefixes that replaces the default list; as for the agents")
	fs.StringToStringVar(&c.Fixed, "fixed-identity-mapping", c.Fixed, "identities 128 to 255 by name, such as 128=kv-store; as for the agents")
	fs.BoolVar(&c.WellKnown, identity.WellKnownFlag, c.WellKnown, "certain system pods, such as CoreDNS, have identities of fixed IDs; as for the agents")
	fs.IntVar(&c.Budget, "identity-unscheduled-budget", c.Budget,
		"how many identities may exist that only pods without a node need, if the operator makes identities; -1 for any number")
}

// Validate checks every option and joins all faults in one error. It reads the file of label
// prefixes.
func (c *Control) Validate() error {
	_, err := c.Rules("default", identity.MinGlobal, identity.MinGlobal)
	errs := validate.Errors{err}
	errs.If(c.Budget < -1, "--identity-unscheduled-budget: %d must be at least -1", c.Budget)
	errs.If(c.Resync <= 0 || c.MaxBackoff <= 0 || c.Workers < 1, "the identity controller's intervals and number of workers must be above 0")
	return errs.Err()
}

// wellKnownNamespace is where the pods with well-known identities run.
const wellKnownNamespace = "kube-system"

// Rules returns what makes a pod's identity in a cluster.
func (c *Control) Rules(cluster string, first, last identity.ID) (*Rules, error) {
	var errs []error
	var file []byte
	if c.LabelPrefixFile != "" {
		var err error
		if file, err = os.ReadFile(c.LabelPrefixFile); err != nil {
			errs = append(errs, fmt.Errorf("--label-prefix-file: %w", err))
		}
	}
	filter, err := labels.NewFilter(c.Labels, file)
	if err != nil {
		errs = append(errs, fmt.Errorf("--labels, --label-prefix-file: %w", err))
	}
	var entries []string
	for id, name := range c.Fixed {
		entries = append(entries, id+"="+name)
	}
	fixed, err := identity.ParseFixed(entries)
	if err != nil {
		errs = append(errs, fmt.Errorf("--fixed-identity-mapping: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r := &Rules{Cluster: cluster, Filter: filter, Fixed: fixed, First: first, Last: last}
	if c.WellKnown {
		r.WellKnown = identity.WellKnownIdentities(cluster, wellKnownNamespace)
	}
	return r, nil
}
