package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Cluster is a handle on one cluster, running or not. Its methods may be called by several
// processes at once; those that change something wait for each other.
type Cluster struct {
	cfg   Config
	out   io.Writer
	paint machine.Palette
	began time.Time
}

// state is what the commands of a cluster share, in cluster.json. It describes; what is
// removed is found without it.
type state struct {
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	Complete bool      `json:"complete"` // Up got to its end
	// ID is the cluster's number.
	ID        int    `json:"id,omitempty"`
	Mode      string `json:"mode"`
	DualStack bool   `json:"dualStack"`
	CNI       string `json:"cni"`
	KubeProxy bool   `json:"kubeProxy"`
	Manifest  string `json:"manifest,omitempty"` // the copy of Config.Manifest; empty for that of the checkout
	Store     string `json:"store,omitempty"`    // of identities, if not Kubernetes
	Cloud     string `json:"cloud,omitempty"`    // that the nodes are in
	// InstanceType is that of the nodes in their cloud, empty for its default.
	InstanceType string `json:"instanceType,omitempty"`
	Port         int    `json:"port"` // of the loopback
	// Flows says that there is a relay of them, and PagePort is its page's port on the loopback.
	Flows    bool   `json:"flows,omitempty"`
	PagePort int    `json:"pagePort,omitempty"`
	BinDir   string `json:"binDir"`
	Programs string `json:"programs"`
	Source   string `json:"source,omitempty"` // of a checkout
	// Processes are those of the control plane, by name.
	Processes map[string]machine.Process `json:"processes"`
	Nodes     []*node                    `json:"nodes"`
}

func (s *state) plan() plan { return plan(s.ID) }

func (s *state) node(name string) *node {
	i := slices.IndexFunc(s.Nodes, func(n *node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return s.Nodes[i]
}

// New returns a handle; it creates nothing. Progress is written to out, in colour if colour is set.
func New(cfg Config, out io.Writer, colour bool) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.BinDir == "" {
		cfg.BinDir = filepath.Dir(cfg.Self[0])
	}
	dir, err := filepath.Abs(cfg.BinDir)
	if err != nil {
		return nil, err
	}
	cfg.BinDir = dir
	return &Cluster{cfg: cfg, out: out, paint: machine.Palette(colour), began: time.Now()}, nil
}

const stateName = "cluster.json"

// Exists reports whether there is a cluster of this name below root, in whatever state.
func Exists(root, name string) bool {
	_, err := os.Stat(filepath.Join(root, name, stateName))
	return err == nil
}

func (c *Cluster) dir() string { return filepath.Join(c.cfg.Root, c.cfg.Name) }
func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir()}, elem...)...)
}
func (c *Cluster) dataDir() string           { return filepath.Join(c.cfg.Data, c.cfg.Name) }
func (c *Cluster) etcdDir() string           { return filepath.Join(c.dataDir(), "etcd") }
func (c *Cluster) netns(name string) string  { return c.path("netns", name) }
func (c *Cluster) nodeDir(n string) string   { return filepath.Join(c.dataDir(), "nodes", n) }
func (c *Cluster) log(process string) string { return c.path("logs", process+".log") }

// Kubeconfig is the path of the user's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.path("kubeconfig") }

func (c *Cluster) say(format string, args ...any) {
	fmt.Fprintf(c.out, "%s %s\n", c.paint.Dim(fmt.Sprintf("%6.2fs", time.Since(c.began).Seconds())), fmt.Sprintf(format, args...))
}

func (c *Cluster) load() (*state, error) {
	data, err := os.ReadFile(c.path(stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, exitcode.NotFoundf("no cluster %q is running: start one with `hawser sandbox up --kubernetes`", c.cfg.Name)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, errors.New("the cluster belongs to root (try sudo)")
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", c.path(stateName), err)
	}
	return &s, nil
}

// save replaces the file in one step, so a reader never sees half of it.
func (c *Cluster) save(s *state) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(c.path(stateName), append(data, '\n'), 0o600, atomicfile.Process)
}

// withLock runs fn while no other command changes the cluster.
func (c *Cluster) withLock(fn func() error) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root: it creates namespaces and mounts (try sudo)")
	}
	unlock, err := machine.Lock(filepath.Join(c.cfg.Root, "."+c.cfg.Name+".lock"))
	if err != nil {
		return err
	}
	err = fn()
	_, missing := os.Stat(c.dir())
	unlock(errors.Is(missing, os.ErrNotExist))
	_ = os.Remove(c.cfg.Root) // succeeds only if they are empty
	_ = os.Remove(c.cfg.Data)
	return err
}

// Up starts the cluster and returns when every node is Ready, and policies can be applied. If it is
// running, processes that have died are started again. What an earlier, unfinished Up left is
// removed first; if this one fails or is interrupted, it removes what it made, and keeps the logs'
// last words in the error.
func (c *Cluster) Up(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	return c.withLock(func() error {
		if err := c.ensurePackages(ctx); err != nil {
			return err
		}
		if st, err := c.load(); err == nil && st.Complete {
			if c.cfg.ID != 0 && c.cfg.ID != st.ID {
				return fmt.Errorf("cluster %q is running with the number %d, and its addresses are made of it: take it down first", st.Name, st.ID)
			}
			return c.upAgain(ctx, st)
		}
		p, err := c.prepare(ctx)
		if err = errors.Join(err, c.checkStore()); err != nil {
			return err
		}
		if _, err := os.Stat(c.path("state.json")); err == nil {
			return fmt.Errorf("%q is the name of a sandbox without Kubernetes: choose another one with --name", c.cfg.Name)
		}
		for _, dir := range []string{c.dir(), c.dataDir()} {
			if _, err := os.Stat(dir); err == nil {
				c.say("an earlier cluster %q did not finish: removing what is left of it", c.cfg.Name)
				if _, err := c.clean(); err != nil {
					return err
				}
			}
		}
		if err := c.claimID(); err != nil {
			return err
		}
		st, err := c.create(ctx, p)
		if err != nil {
			c.say("%s", c.paint.Red("failed: removing what was started"))
			_, cleanErr := c.clean()
			return errors.Join(err, cleanErr)
		}
		c.say("%s", c.paint.Bold(fmt.Sprintf("cluster %q is up: Kubernetes %s, %s", st.Name, parts.Version, describe(st))))
		return nil
	})
}

// create starts everything.
func (c *Cluster) create(ctx context.Context, p prepared) (*state, error) {
	for _, d := range []string{c.path("netns"), c.path("logs"), c.etcdDir(), filepath.Join(c.dataDir(), meshEtcd), c.storeDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	manifest, err := c.keepManifest()
	if err != nil {
		return nil, err
	}
	listener, err := listen(0)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	st := &state{
		Name: c.cfg.Name, Created: time.Now(), ID: c.cfg.ID, Mode: c.cfg.Mode, DualStack: c.cfg.DualStack, CNI: c.cfg.CNI, KubeProxy: c.cfg.KubeProxy, Manifest: manifest, Store: c.cfg.Store, Cloud: c.cfg.Cloud, InstanceType: c.cfg.InstanceType,
		Port: listener.port, Flows: c.cfg.showsFlows(), BinDir: c.cfg.BinDir, Programs: p.programs, Source: p.source, Processes: map[string]machine.Process{},
	}
	if st.Mode == Full {
		for i := 1; i <= c.cfg.Nodes; i++ {
			st.Nodes = append(st.Nodes, st.plan().node(i, st.DualStack))
		}
	}
	if err := c.save(st); err != nil {
		return nil, err
	}
	if st.CNI != PTP && st.Mode == Full {
		if _, err := c.makeHawserImage(); err != nil {
			return nil, err
		}
	}
	if err := writePKI(c.path("pki"), st, loopbackURL(st.Port)); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	if st.meshed() {
		if err := writeMeshPKI(c.path("pki", meshDir), st); err != nil {
			return nil, fmt.Errorf("certificates: %w", err)
		}
	}
	if st.Flows {
		if err := writeHubblePKI(c.path("pki", hubbleDir), st); err != nil {
			return nil, fmt.Errorf("certificates: %w", err)
		}
	}
	if st.Cloud != "" {
		if err := c.writeCloud(st); err != nil {
			return nil, fmt.Errorf("cloud: %w", err)
		}
	}
	if err := c.createNetwork(st); err != nil {
		return nil, err
	}
	c.say("certificates made, control plane and %s connected", describe(st))
	if err := c.startStore(ctx, st, listener); err != nil {
		return nil, err
	}
	// Nodes take images in while the API server starts; their kubelets try until it answers.
	for _, n := range st.Nodes {
		if err := c.startNode(st, n, p.images); err != nil {
			return nil, err
		}
	}
	if err := c.save(st); err != nil {
		return nil, err
	}
	if err := c.finishControlPlane(ctx, st); err != nil {
		return nil, err
	}
	if err := c.deploy(ctx, st); err != nil {
		return nil, err
	}
	if err := c.waitNodes(ctx, st, st.Nodes, time.Time{}); err != nil {
		return nil, err
	}
	if err := c.waitAccount(ctx, st); err != nil {
		return nil, err
	}
	if err := c.waitKinds(ctx, st); err != nil {
		return nil, err
	}
	if err := c.startFlows(ctx, st); err != nil {
		return nil, err
	}
	st.Complete = true
	return st, c.save(st)
}

func (c *Cluster) createNetwork(st *state) error {
	world := st.plan().world()
	if err := world.CreateBridge(c.netns(worldName)); err != nil {
		return err
	}
	if err := st.plan().master().Create(c.netns(worldName), c.netns(masterName), world, true); err != nil {
		return err
	}
	if st.Cloud != "" {
		return c.makeRouter(st)
	}
	return errors.Join(routesTo(c.netns(worldName), machine.Bridge, st.Nodes), routesTo(c.netns(masterName), "eth0", st.Nodes))
}

// upAgain is Up of a running cluster.
func (c *Cluster) upAgain(ctx context.Context, st *state) error {
	c.say("cluster %q is already there since %s: %s", st.Name, st.Created.Format(time.DateTime), describe(st))
	c.cfg.Mode, c.cfg.CNI, c.cfg.BinDir = st.Mode, st.CNI, st.BinDir
	p, err := c.prepare(ctx)
	if err != nil {
		return err
	}
	if err := c.restartControlPlane(ctx, st); err != nil {
		return err
	}
	if st.CNI != PTP && st.Mode == Full {
		if err := c.refreshHawser(ctx, st); err != nil {
			return err
		}
	}
	var started []*node
	since := time.Now()
	for _, n := range st.Nodes {
		if n.Init.Alive() || n.Killed {
			continue
		}
		c.say("node %s does not run: starting it again", n.Name)
		if err := c.bootNode(st, n, p.images); err != nil {
			return err
		}
		started = append(started, n)
	}
	return errors.Join(c.save(st), c.startFlows(ctx, st), c.waitNodes(ctx, st, started, since))
}

// Down ends and removes the cluster, however much of it there is. There being none is fine.
func (c *Cluster) Down(context.Context) error {
	return c.withLock(func() error {
		_, here := os.Stat(c.dir())
		_, data := os.Stat(c.dataDir())
		if here != nil && data != nil {
			c.say("no cluster %q is running: nothing to remove", c.cfg.Name)
			return nil
		}
		ended, err := c.clean()
		if err != nil {
			return fmt.Errorf("remove the cluster (try again): %w", err)
		}
		c.say("cluster %q is gone: %d processes ended, its namespaces, mounts, cgroups and files removed", c.cfg.Name, ended)
		return nil
	})
}

// clean ends the processes in the cluster's namespaces, the first ones of nodes with all that runs
// there, and removes everything.
func (c *Cluster) clean() (ended int, err error) {
	// At once: an API server waits for its etcd before it ends, and nothing of it all is kept.
	if ended, err = machine.Clear(c.dir(), 0); err != nil {
		return ended, err
	}
	groups, err := findCgroups()
	if err == nil {
		err = eventually(5*time.Second, func() error { return groups.remove(filepath.Join("/", cgroupBase, c.cfg.Name)) })
	}
	// Mounts of nodes went with their namespaces. Should something be mounted here all the same,
	// what is behind it is not to be removed.
	left, mountErr := machine.MountsBelow(c.dataDir())
	if mountErr != nil || len(left) > 0 {
		return ended, errors.Join(err, mountErr, fmt.Errorf("%d mounts are left below %s", len(left), c.dataDir()))
	}
	return ended, errors.Join(err, os.RemoveAll(c.dataDir()), os.RemoveAll(c.dir()))
}

// eventually repeats fn until it succeeds. Processes that were killed leave their cgroups a moment
// later, and there is no notice of it.
func eventually(timeout time.Duration, fn func() error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := fn()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// waitNodes waits until the nodes, which were started after since, are Ready and have all images.
// Nodes of a new cluster have no past: since is zero.
func (c *Cluster) waitNodes(ctx context.Context, st *state, nodes []*node, since time.Time) error {
	if len(nodes) == 0 {
		return nil
	}
	api, err := c.client(st.Port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StartTimeout)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		g.Go(func() error { return c.waitNode(ctx, api, n, since) })
	}
	return g.Wait()
}

func (c *Cluster) waitNode(ctx context.Context, api *client, n *node, since time.Time) error {
	var why string
	for {
		var ready bool
		if ready, why = c.nodeReady(ctx, api, n, since); ready {
			if c.cfg.CNI == None {
				c.say("node %s is there, and Ready once it has a network", n.Name)
			} else {
				c.say("node %s is Ready", n.Name)
			}
			return nil
		}
		if !n.Init.Alive() {
			return fmt.Errorf("node %s ended: %s", n.Name, machine.LastLines(c.log(n.Name), 8))
		}
		if !retry.Sleep(ctx, 100*time.Millisecond) {
			return fmt.Errorf("node %s is not Ready after %s: %s; its logs are in %s", n.Name, c.cfg.StartTimeout, why,
				filepath.Join(c.nodeDir(n.Name), "var/log"))
		}
	}
}

// noNetwork is the reason that a container runtime gives for not being ready without a network.
const noNetwork = "NetworkPluginNotReady"

// nodeReady reports whether a node that was started after since is Ready, and what it lacks.
func (c *Cluster) nodeReady(ctx context.Context, api *client, n *node, since time.Time) (bool, string) {
	var object nodeObject
	if err := api.do(ctx, "GET", "/api/v1/nodes/"+n.Name, "", nil, &object); err != nil {
		return false, err.Error()
	}
	if ready, why := object.ready(since); !ready && (c.cfg.CNI != None || !strings.Contains(why, noNetwork)) {
		return false, why
	}
	if !since.IsZero() {
		if renewed, err := api.renewed(ctx, n.Name); err != nil || renewed.Before(since) {
			return false, "its kubelet has not said that it is alive"
		}
	}
	if _, err := os.Stat(filepath.Join(c.nodeDir(n.Name), "node", importedTag)); err != nil {
		return false, "it is still taking images in"
	}
	return true, ""
}

func describe(st *state) string {
	if st.Mode == APIOnly {
		return "no nodes"
	}
	text := fmt.Sprintf("%d nodes", len(st.Nodes))
	if len(st.Nodes) == 1 {
		text = "1 node"
	}
	if st.DualStack {
		text += ", IPv4 and IPv6"
	}
	if st.ID != 0 {
		text += fmt.Sprintf(", number %d", st.ID)
	}
	text += ", network " + st.CNI
	if st.Cloud != "" {
		text += " in the cloud " + st.Cloud
	}
	if st.CNI == None {
		text += " yet"
	}
	if st.KubeProxy {
		text += " with kube-proxy"
	}
	return text
}
