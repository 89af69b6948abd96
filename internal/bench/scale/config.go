package scale

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/operator/election"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
	"github.com/hawser-net/hawser/internal/validate"
)

// Ways to make identities, for Config.Modes.
const (
	// modeAgents has every agent make the identities that its pods need.
	modeAgents = "agents"
	// modeOperator has the operator make them.
	modeOperator = "operator"
	// modeRandom has agents pick IDs at random, as others do, instead of trying the same ones
	// in the same order: for comparison.
	modeRandom = "random"
)

// Config says what to measure. Use [Defaults].
type Config struct {
	// Scenarios are the names of those to run, of Scenarios; all if empty.
	Scenarios []string
	// Full takes the sizes of a data centre for all sizes that are not given: hours on a small
	// machine.
	Full bool

	// Agents is how many agents, with a pod each, a namespace's relabelling meets; RandomAgents is
	// the same for the mode random, which asks for the square of it in events. Modes are the ways
	// to make identities.
	Agents, RandomAgents int
	Modes                []string
	// KillAfter is when the leading operator is killed, after the namespace was relabelled.
	KillAfter time.Duration

	// Numbers is how many identities there can be in the scenario that fills them; 65,280 is a
	// cluster's whole range. InUse of them have an endpoint.
	Numbers, InUse int
	// CollectEvery is how often the operator looks for unused identities, and how long one must be
	// unused where the range was filled.
	CollectEvery time.Duration

	// CollectAgents is how many agents observe CollectUnused identities that end at once.
	CollectAgents, CollectUnused int

	// Sizes are the numbers of pods at which memory is measured, ascending.
	Sizes []int
	// Quiet is how long programs are left alone before their memory is read, and how long their
	// rest is watched.
	Quiet time.Duration

	// StreamPods come at StreamRate a second on StreamNodes nodes. Observers agents of them observe
	// all pods.
	StreamPods, StreamNodes, Observers int
	StreamRate                         float64

	// IPAMNodes come to a cloud that allows IPAMRate requests a second; what is asked when all have
	// their addresses is watched for IPAMRest. IPAMPods come at IPAMPodRate a second.
	IPAMNodes, IPAMPods   int
	IPAMRate, IPAMPodRate float64
	IPAMRest              time.Duration

	// MeshPods is how many pods another cluster knows before new ones come.
	MeshPods int

	// Lease is how long the operators' lease lasts; 0 for their default.
	Lease time.Duration
	// Timeout is how long a cluster may take to come to what it should be.
	Timeout time.Duration

	// BinDir has the programs to measure: hawser-operator and hawser-agent.
	BinDir string
	// Operator and Agent are these programs, with their first arguments; those of BinDir if empty.
	Operator, Agent []string
	// Self is this program, started again to serve etcd with a directory as its last argument (see
	// bench.ServeEtcd).
	Self []string
	// Out is the directory that the report and its plots are written to.
	Out string
	// Progress receives what is going on; nil is silence.
	Progress io.Writer
	// Keep leaves the directory with the logs behind.
	Keep bool
}

// Defaults returns sizes that a machine with two processors does in a quarter of an hour.
func Defaults() Config {
	return Config{
		Agents: 5000, RandomAgents: 500, Modes: []string{modeOperator, modeAgents, modeRandom}, KillAfter: 0,
		Numbers: 65280, InUse: 500, CollectEvery: 10 * time.Second, Sizes: []int{10000, 40000}, Quiet: 6 * time.Second,
		StreamPods: 4000, StreamNodes: 200, Observers: 4, StreamRate: 100, MeshPods: 20000, CollectAgents: 500, CollectUnused: 3000,
		IPAMNodes: 500, IPAMPods: 2500, IPAMRate: 20, IPAMPodRate: 100, IPAMRest: time.Minute,
		Timeout: 5 * time.Minute, BinDir: "bin", Out: "bin/scale",
	}
}

// complete fills in what follows from the rest.
func (c *Config) complete() {
	if c.Full {
		c.full()
	}
	if len(c.Operator) == 0 {
		c.Operator = []string{filepath.Join(c.BinDir, "hawser-operator")}
	}
	if len(c.Agent) == 0 {
		c.Agent = []string{filepath.Join(c.BinDir, "hawser-agent")}
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
}

// full changes what is still at its default to the sizes that the figures of Cilium are given for.
func (c *Config) full() {
	d := Defaults()
	set := func(v *int, def, full int) {
		if *v == def {
			*v = full
		}
	}
	set(&c.RandomAgents, d.RandomAgents, 5000)
	set(&c.InUse, d.InUse, 5000)
	set(&c.StreamPods, d.StreamPods, 40000)
	set(&c.StreamNodes, d.StreamNodes, 400)
	set(&c.Observers, d.Observers, 8)
	set(&c.MeshPods, d.MeshPods, 100000)
	set(&c.IPAMNodes, d.IPAMNodes, 5000)
	set(&c.IPAMPods, d.IPAMPods, 40000)
	set(&c.CollectAgents, d.CollectAgents, 5000)
	set(&c.CollectUnused, d.CollectUnused, 60000)
	if slices.Equal(c.Sizes, d.Sizes) {
		c.Sizes = []int{10000, 40000, 100000}
	}
	if c.Timeout == d.Timeout {
		c.Timeout = time.Hour
	}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Scenarios, "scenarios", c.Scenarios, "scenarios to run, of "+strings.Join(Scenarios(), ", ")+"; all by default")
	fs.BoolVar(&c.Full, "full", c.Full, "the sizes of a data centre, where no other is given: hours on two processors")
	fs.IntVar(&c.Agents, "agents", c.Agents, "relabel: agents, with a pod each")
	fs.IntVar(&c.RandomAgents, "random-agents", c.RandomAgents, "relabel: the same for random IDs, which make the square of it in events")
	fs.StringSliceVar(&c.Modes, "modes", c.Modes, "relabel: who makes identities, of "+strings.Join(modes(), ", "))
	fs.DurationVar(&c.KillAfter, "kill-after", c.KillAfter, "relabel: when the leading operator is killed, after the namespace got its new label")
	fs.IntVar(&c.Numbers, "numbers", c.Numbers, "identities: how many there can be")
	fs.IntVar(&c.InUse, "in-use", c.InUse, "identities: how many of them are in use when the others are collected")
	fs.DurationVar(&c.CollectEvery, "collect-every", c.CollectEvery, "identities, collect: how often the operator looks for unused ones; identities: how long one must be unused, too")
	fs.IntVar(&c.CollectAgents, "collect-agents", c.CollectAgents, "collect: agents that follow the identities")
	fs.IntVar(&c.CollectUnused, "collect-unused", c.CollectUnused, "collect: unused identities; a twelfth as many are in use")
	fs.IntSliceVar(&c.Sizes, "sizes", c.Sizes, "memory: numbers of pods to measure at")
	fs.DurationVar(&c.Quiet, "quiet", c.Quiet, "memory: how long programs are left alone before they are looked at")
	fs.IntVar(&c.StreamPods, "stream-pods", c.StreamPods, "stream: how many pods are created")
	fs.Float64Var(&c.StreamRate, "stream-rate", c.StreamRate, "stream: how many a second")
	fs.IntVar(&c.StreamNodes, "stream-nodes", c.StreamNodes, "stream: on how many nodes")
	fs.IntVar(&c.Observers, "observers", c.Observers, "stream: agents that receive all pods, with connections and watches of their own")
	fs.IntVar(&c.IPAMNodes, "ipam-nodes", c.IPAMNodes, "ipam: nodes that come at once")
	fs.Float64Var(&c.IPAMRate, "ipam-rate", c.IPAMRate, "ipam: requests a second that the cloud allows")
	fs.IntVar(&c.IPAMPods, "ipam-pods", c.IPAMPods, "ipam: pods that come when nodes have their addresses")
	fs.Float64Var(&c.IPAMPodRate, "ipam-pod-rate", c.IPAMPodRate, "ipam: how many of them a second")
	fs.DurationVar(&c.IPAMRest, "ipam-rest", c.IPAMRest, "ipam: how long it is watched what is asked at rest")
	fs.IntVar(&c.MeshPods, "mesh-pods", c.MeshPods, "mesh: pods that the other cluster knows before new ones come")
	fs.DurationVar(&c.Lease, "lease", c.Lease, "how long the operators' lease lasts; 0 for their default")
	fs.DurationVar(&c.Timeout, "timeout", c.Timeout, "how long the cluster may take to come to what it should be")
	fs.StringVar(&c.BinDir, "bin", c.BinDir, "directory with the programs to measure")
	fs.StringVar(&c.Out, "out", c.Out, "directory for the report and its plots; scenarios that are not run stay there as an earlier run found them")
	fs.BoolVar(&c.Keep, "keep", c.Keep, "leave the logs of the processes behind")
}

func modes() []string { return []string{modeAgents, modeOperator, modeRandom} }

// validate checks every option of a complete configuration and joins all faults.
func (c *Config) validate() error {
	var errs validate.Errors
	for _, s := range c.Scenarios {
		errs.If(!slices.Contains(Scenarios(), s), "--scenarios: there is no %q: choose of %s", s, strings.Join(Scenarios(), ", "))
	}
	for _, m := range c.Modes {
		errs.If(!slices.Contains(modes(), m), "--modes: there is no %q: choose of %s", m, strings.Join(modes(), ", "))
	}
	const mostAgents, mostPods = 1 << 16, 254 // see podOf
	for flag, n := range map[string]int{"agents": c.Agents, "random-agents": c.RandomAgents, "stream-nodes": c.StreamNodes, "collect-agents": c.CollectAgents} {
		errs.If(n < 1 || n > mostAgents, "--%s: %d is not 1 to %d", flag, n, mostAgents)
	}
	errs.If(c.StreamPods < 1 || c.StreamNodes > 0 && (c.StreamPods-1)/c.StreamNodes+1 > mostPods,
		"--stream-pods: %d on %d nodes is not 1 to %d each", c.StreamPods, c.StreamNodes, mostPods)
	if c.IPAMNodes < 1 || c.IPAMNodes > 100*nodesASubnet || c.IPAMRate < 1 || c.IPAMRest <= 0 || c.IPAMPods < 1 || c.IPAMPods > 10*c.IPAMNodes || c.IPAMPodRate <= 0 {
		errs.Add("--ipam-nodes, --ipam-rate, --ipam-rest, --ipam-pods and --ipam-pod-rate: %d, %g, %v, %d and %g: want 1 to %d, 1 and more, some time, up to 10 a node, above 0",
			c.IPAMNodes, c.IPAMRate, c.IPAMRest, c.IPAMPods, c.IPAMPodRate, 100*nodesASubnet)
	}
	errs.If(c.MeshPods < 1 || c.MeshPods > 1<<23, "--mesh-pods: %d is not 1 to %d", c.MeshPods, 1<<23)
	errs.If(c.StreamRate <= 0, "--stream-rate: %g is not above 0", c.StreamRate)
	errs.If(c.Observers < 1 || c.Observers > c.StreamNodes, "--observers: %d is not 1 to the %d nodes", c.Observers, c.StreamNodes)
	errs.If(c.InUse < 1 || c.Numbers < 4*c.InUse || c.Numbers > wholeRange,
		"--numbers and --in-use: %d and %d: there must be at least four times as many as are in use, and at most %d", c.Numbers, c.InUse, wholeRange)
	if n := c.CollectUnused; n < 1 || n+n/collectShare+1 > wholeRange-newIDs || c.CollectAgents > 0 && n/collectShare/c.CollectAgents >= mostPods {
		errs.Add("--collect-unused: %d is not 1 to some 60000, or more than %d agents have room for", n, c.CollectAgents)
	}
	errs.If(len(c.Sizes) == 0 || c.Sizes[0] < 1 || !slices.IsSorted(c.Sizes), "--sizes: %v does not ascend from above 0", c.Sizes)
	errs.If(c.CollectEvery < time.Second, "--collect-every: %s is below a second", c.CollectEvery)
	errs.If(c.Quiet <= 0, "--quiet: %s is not above 0", c.Quiet)
	errs.If(c.Timeout <= 0 || c.KillAfter < 0 || c.Lease < 0, "--timeout must be above 0, --kill-after and --lease not below")
	errs.If(len(c.Self) == 0, "no program to serve etcd with")
	for _, program := range [][]string{c.Operator, c.Agent} {
		if _, err := os.Stat(program[0]); err != nil {
			errs.Add("%w: run `make build` first", err)
		}
	}
	if dir, err := parts.Dir(); err != nil {
		errs.Add("%w", err)
	} else if _, err := os.Stat(filepath.Join(dir, "kube-apiserver")); err != nil {
		errs.Add("%w: run `make kube-apiserver` first", err)
	}
	return errs.Err()
}

// leaseFlags are the operators' flags for a lease that lasts as long as the configuration says.
func (c *Config) leaseFlags() []string {
	if c.Lease == 0 {
		return nil
	}
	return []string{
		"--leader-election-lease-duration", c.Lease.String(), "--leader-election-renew-deadline", (c.Lease * 2 / 3).String(),
		"--leader-election-retry-period", min(c.Lease/8, election.Defaults().RetryPeriod).String(),
	}
}
