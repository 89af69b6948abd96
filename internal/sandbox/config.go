package sandbox

import (
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/validate"
)

// Config is what a sandbox is made of. Use Defaults and change what differs.
type Config struct {
	// Name identifies a sandbox on a machine: 1 to 32 characters of a-z, 0-9 and -.
	Name string
	// Root is the directory of all sandboxes; <Root>/<Name> holds this one.
	Root string
	// Data is the directory of what clusters with Kubernetes keep on disk; other sandboxes don't
	// use it.
	Data string
	// Nodes is the number of nodes, 1 to 9.
	Nodes int
	// BinDir holds hawser-agent and hawser-cni; empty for the directory of Self.
	BinDir string
	// Self is the command that runs the hidden subcommands of this package (etcd and serve). They
	// are appended to it.
	Self []string
	// IPv6 gives pods and nodes IPv6 addresses besides IPv4.
	IPv6 bool
	// RoutingMode is tunnel or native, as the agent's flag of that name.
	RoutingMode string
	// EnablePolicy is default, always or never, as the agent's flag of that name.
	EnablePolicy string
	// AgentArgs are appended to the command line of every agent.
	AgentArgs []string
	// StartTimeout bounds how long Up waits for etcd and for each agent.
	StartTimeout time.Duration
	// Demo runs three tiers of pods with their policies once the nodes are up.
	Demo bool
}

// Defaults returns a sandbox of two nodes that runs this program, and those beside it.
func Defaults() Config {
	c := Config{
		Name: "demo", Root: "/run/hawser-sandbox", Data: kube.Defaults().Data, Nodes: 2, IPv6: true,
		RoutingMode: "tunnel", EnablePolicy: "default", StartTimeout: time.Minute,
	}
	if exe, err := os.Executable(); err == nil {
		c.Self = []string{exe, "sandbox"}
	}
	return c
}

// Flags binds what concerns the creation of a sandbox to command-line flags.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Nodes, "nodes", c.Nodes, "number of nodes, 1 to 9; with --kubernetes 1 to 20")
	fs.BoolVar(&c.IPv6, "ipv6", c.IPv6, "give pods IPv6 addresses, too")
	fs.StringVar(&c.RoutingMode, "routing-mode", c.RoutingMode, "how packets travel between nodes: tunnel or native")
	fs.StringVar(&c.EnablePolicy, "enable-policy", c.EnablePolicy, "when policy is enforced: default, always or never")
	fs.StringArrayVar(&c.AgentArgs, "agent-arg", c.AgentArgs, "argument to add to the agents' command lines (repeatable)")
	fs.DurationVar(&c.StartTimeout, "start-timeout", c.StartTimeout, "how long to wait for each part to start; with --kubernetes at least "+kube.Defaults().StartTimeout.String())
	fs.BoolVar(&c.Demo, "demo", c.Demo, "run the three-tier demo: front, api, db and their policies")
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// Validate checks every field and joins all faults in one error.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.If(!nameForm.MatchString(c.Name), "sandbox name %q: want 1 to 32 characters of a-z, 0-9 and -", c.Name)
	if !filepath.IsAbs(c.Root) {
		errs.Add("sandbox directory %q is not an absolute path", c.Root)
	} else if len(c.Root)+len(c.Name) > 60 {
		errs.Add("sandbox directory %q is too long: the sockets below it could not be named", c.Root)
	}
	errs.If(c.Nodes < 1 || c.Nodes > 9, "%d nodes: want 1 to 9", c.Nodes)
	errs.If(c.RoutingMode != "tunnel" && c.RoutingMode != "native", "routing mode %q: want tunnel or native", c.RoutingMode)
	errs.If(c.EnablePolicy != "default" && c.EnablePolicy != "always" && c.EnablePolicy != "never", "enable-policy %q: want default, always or never", c.EnablePolicy)
	errs.If(len(c.Self) == 0, "the running program's path is unknown")
	errs.If(c.StartTimeout <= 0, "start timeout %v is not positive", c.StartTimeout)
	return errs.Err()
}
