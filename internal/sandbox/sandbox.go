package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// Sandbox is a handle on one sandbox, running or not. Its methods may be called by several
// processes at once; those that change something wait for each other.
type Sandbox struct {
	cfg   Config
	out   io.Writer
	paint machine.Palette
	began time.Time
}

// New returns a handle; it creates nothing. Progress is written to out, in colour if colour is set.
func New(cfg Config, out io.Writer, colour bool) (*Sandbox, error) {
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
	return &Sandbox{cfg: cfg, out: out, paint: machine.Palette(colour), began: time.Now()}, nil
}

// Paths of a sandbox, all below its directory.
func (s *Sandbox) dir() string { return filepath.Join(s.cfg.Root, s.cfg.Name) }
func (s *Sandbox) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir()}, elem...)...)
}
func (s *Sandbox) stateFile() string              { return s.path("state.json") }
func (s *Sandbox) netns(name string) string       { return s.path("netns", name) }
func (s *Sandbox) nodePath(n, elem string) string { return s.path("nodes", n, elem) }
func (s *Sandbox) socket(n string) string         { return s.nodePath(n, "cilium.sock") }
func (s *Sandbox) flowSocket(n string) string     { return s.nodePath(n, "hubble.sock") }
func (s *Sandbox) hostsFile() string              { return s.path("hosts") }
func (s *Sandbox) lockFile() string               { return filepath.Join(s.cfg.Root, "."+s.cfg.Name+".lock") }

// PolicyDir is the directory of the policies that all agents follow; they notice changes.
func (s *Sandbox) PolicyDir() string { return s.path("policies") }

// EtcdEndpoint is where etcd is reached from the machine itself. The nodes use the underlay.
func (s *Sandbox) EtcdEndpoint() string { return "unix://" + s.path("etcd.sock") }

// say prints a line of progress with the time since the command began.
func (s *Sandbox) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%s %s\n", s.paint.Dim(fmt.Sprintf("%6.2fs", time.Since(s.began).Seconds())), fmt.Sprintf(format, args...))
}

// withLock runs fn while no other command changes the sandbox.
func (s *Sandbox) withLock(fn func() error) error {
	if os.Geteuid() != 0 {
		return errors.New("the sandbox needs root: it creates network namespaces and loads BPF programs (try sudo)")
	}
	unlock, err := machine.Lock(s.lockFile())
	if err != nil {
		return err
	}
	err = fn()
	_, missing := os.Stat(s.dir())
	unlock(errors.Is(missing, os.ErrNotExist))
	_ = os.Remove(s.cfg.Root) // succeeds only if it is empty
	return err
}

// Up starts the sandbox. If it is running it says so, starts agents again that have died, and adds
// the demo if that is asked for and there is no pod yet. What
// an earlier, unfinished Up left is removed first; if this one fails or is interrupted, it removes
// what it made.
func (s *Sandbox) Up(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	return s.withLock(func() error {
		st, err := loadState(s.stateFile())
		if err == nil && st.Complete && st.Etcd.Alive() {
			return s.upAgain(ctx, st)
		}
		if kube.Exists(s.cfg.Root, s.cfg.Name) {
			return fmt.Errorf("%q is the name of a cluster with Kubernetes: choose another one with --name", s.cfg.Name)
		}
		if _, there := os.Stat(s.dir()); there == nil {
			s.say("an earlier sandbox %q did not finish or lost its etcd: removing what is left of it", s.cfg.Name)
			if _, err := s.clean(); err != nil {
				return err
			}
		}
		for _, b := range []string{"hawser-agent", "hawser-cni"} {
			if _, err := os.Stat(filepath.Join(s.cfg.BinDir, b)); err != nil {
				return fmt.Errorf("%s is not in %s: build it (make build) or name its directory with --bin-dir", b, s.cfg.BinDir)
			}
		}
		st, err = s.create(ctx)
		if err == nil && s.cfg.Demo {
			err = s.runDemo(ctx, st)
		}
		if err == nil {
			st.Complete = true
			err = st.save(s.stateFile())
		}
		if err != nil {
			s.say("%s", s.paint.Red("failed: removing what was started"))
			_, cleanErr := s.clean()
			return errors.Join(err, cleanErr)
		}
		s.say("%s", s.paint.Bold(fmt.Sprintf("sandbox %q is up: %s, %s", s.cfg.Name, count(len(st.Nodes), "node"), count(len(st.Pods), "pod"))))
		return nil
	})
}

// upAgain is Up of a running sandbox.
func (s *Sandbox) upAgain(ctx context.Context, st *state) error {
	s.say("sandbox %q is already running since %s: %s, %s", st.Name, st.Created.Format(time.TimeOnly),
		count(len(st.Nodes), "node"), count(len(st.Pods), "pod"))
	for _, n := range st.Nodes {
		health := s.agentHealth(ctx, n.Name)
		if health == nil {
			continue
		}
		// It may have been killed a moment ago.
		if err := n.Agent.WaitEnded(5 * time.Second); err != nil {
			return fmt.Errorf("the agent of %s runs but is not well: %w; see %s", n.Name, health, s.agentLog(n.Name))
		}
		s.say("the agent of %s has ended: starting it again", n.Name)
		if err := s.startAgent(st, n); err != nil {
			return err
		}
		if err := st.save(s.stateFile()); err != nil {
			return err
		}
		if err := s.waitAgent(ctx, n, time.Now()); err != nil {
			return err
		}
	}
	if st.Relay.PID != 0 && !st.Relay.Alive() {
		s.say("the relay of flows has ended: starting it again")
		if err := s.startRelay(ctx, st); err != nil {
			return err
		}
	}
	if st.Page.PID != 0 && !st.Page.Alive() {
		s.say("the page of flows has ended: starting it again")
		if err := s.startPage(ctx, st); err != nil {
			return err
		}
	}
	if s.cfg.Demo && len(st.Pods) == 0 {
		if err := s.writeDemoPolicies(); err != nil {
			return err
		}
		if err := s.runDemo(ctx, st); err != nil {
			return err
		}
	}
	return nil
}

// create starts everything but pods.
func (s *Sandbox) create(ctx context.Context) (*state, error) {
	if err := os.Mkdir(s.dir(), 0o755); err != nil {
		return nil, err
	}
	for _, d := range []string{"netns", "policies", "nodes", "etcd", "cni-cache", "logs"} {
		if err := os.Mkdir(s.path(d), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(s.path("etcd"), 0o700); err != nil { // etcd insists
		return nil, err
	}
	st := &state{
		Name: s.cfg.Name, Created: time.Now(), IPv6: s.cfg.IPv6, RoutingMode: s.cfg.RoutingMode,
		EnablePolicy: s.cfg.EnablePolicy, BinDir: s.cfg.BinDir, Self: s.cfg.Self,
	}
	if err := st.save(s.stateFile()); err != nil {
		return nil, err
	}

	t := time.Now()
	if err := worldHost().CreateBridge(s.netns(worldName)); err != nil {
		return nil, err
	}
	for i := 1; i <= s.cfg.Nodes; i++ {
		n := newNode(i, s.cfg.IPv6)
		if err := os.MkdirAll(s.nodePath(n.Name, "bpf"), 0o755); err != nil {
			return nil, err
		}
		if err := unix.Mount("bpf", s.nodePath(n.Name, "bpf"), "bpf", 0, "mode=0700"); err != nil {
			return nil, fmt.Errorf("BPF file system of %s: %w", n.Name, err)
		}
		if err := n.connect(s.netns(worldName), s.netns(n.Name)); err != nil {
			return nil, err
		}
		st.Nodes = append(st.Nodes, n)
	}
	s.say("underlay and %s connected (%s)", count(len(st.Nodes), "node"), since(t))

	t = time.Now()
	world := worldHost()
	var peers []peer
	if s.cfg.Demo {
		peers = demoPeers(worldName)
	}
	var err error
	st.World, err = machine.Daemon{
		Namespace: s.netns(worldName), Log: s.path("logs", "world.log"), Ready: true, Timeout: s.cfg.StartTimeout,
		Argv: s.serveCommand(s.cfg.Self, worldName, []uint16{worldPort}, peers),
	}.Start()
	if err != nil {
		return nil, fmt.Errorf("server of the world: %w", err)
	}
	etcdURL := fmt.Sprintf("http://%s:2379", world.IPv4)
	st.Etcd, err = machine.Daemon{
		Namespace: s.netns(worldName), Log: s.path("logs", "etcd.log"), Ready: true, Timeout: s.cfg.StartTimeout,
		Argv: append(slices.Clone(s.cfg.Self), "etcd", "--dir", s.path("etcd"), "--ready-fd", "3", "--listen", etcdURL+","+s.EtcdEndpoint()),
	}.Start()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	s.say("etcd answers at %s on the underlay (%s); the world is %s, %s", etcdURL, since(t), world.IPv4, world.IPv6)
	if err := st.save(s.stateFile()); err != nil {
		return nil, err
	}

	if s.cfg.Demo {
		if err := s.writeDemoPolicies(); err != nil {
			return nil, err
		}
	}
	t = time.Now()
	for _, n := range st.Nodes {
		if err := s.startAgent(st, n); err != nil {
			return nil, err
		}
	}
	if err := st.save(s.stateFile()); err != nil {
		return nil, err
	}
	for _, n := range st.Nodes {
		if err := s.waitAgent(ctx, n, t); err != nil {
			return nil, err
		}
	}
	if err := s.startRelay(ctx, st); err != nil {
		return nil, err
	}
	if err := s.startPage(ctx, st); err != nil {
		return nil, err
	}
	return st, s.writeHosts(st)
}

// Down ends and removes the sandbox, however much of it there is. There being none is fine.
func (s *Sandbox) Down(ctx context.Context) error {
	return s.withLock(func() error {
		if kube.Exists(s.cfg.Root, s.cfg.Name) {
			return fmt.Errorf("%q is a cluster with Kubernetes", s.cfg.Name) // the command line sees this earlier
		}
		if _, err := os.Stat(s.dir()); errors.Is(err, os.ErrNotExist) {
			s.say("no sandbox %q is running: nothing to remove", s.cfg.Name)
			return nil
		}
		ended, err := s.clean()
		if err != nil {
			return fmt.Errorf("remove the sandbox (try again): %w", err)
		}
		s.say("sandbox %q is gone: %d processes ended, its namespaces, mounts and files removed", s.cfg.Name, ended)
		return nil
	})
}

// clean ends the processes in the sandbox's namespaces, unmounts what is mounted below its
// directory, and removes the directory.
func (s *Sandbox) clean() (ended int, err error) {
	if ended, err = machine.Clear(s.dir(), 3*time.Second); err != nil {
		return ended, err
	}
	if left, err := machine.MountsBelow(s.dir()); err != nil || len(left) > 0 {
		return ended, errors.Join(err, fmt.Errorf("%d mounts are left below %s", len(left), s.dir()))
	}
	return ended, os.RemoveAll(s.dir())
}

// running loads the state of a sandbox that Up has finished with.
func (s *Sandbox) running() (*state, error) {
	st, err := loadState(s.stateFile())
	if errors.Is(err, errNotRunning) {
		return nil, exitcode.NotFoundf("no sandbox %q is running: start one with `hawser sandbox up`", s.cfg.Name)
	}
	if errors.Is(err, os.ErrPermission) {
		return nil, errors.New("the sandbox belongs to root (try sudo)")
	}
	return st, err
}

func since(t time.Time) string { return took(time.Since(t)) }

// took writes a duration for people.
func took(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
