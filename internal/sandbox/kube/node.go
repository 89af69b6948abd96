package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// bootNode is startNode of a node that ran before: what a reboot loses is gone, what a disk keeps
// is there.
func (c *Cluster) bootNode(st *state, n *node, images imageFiles) error {
	if err := c.powerOff(st, n); err != nil {
		return err
	}
	return c.startNode(st, n, images)
}

// powerOff ends a node as a power cut does: nothing is notified. Its network namespace goes, too,
// and with it its links, routes and programs.
func (c *Cluster) powerOff(st *state, n *node) error {
	if err := n.Init.Send(unix.SIGKILL); err != nil {
		return err
	}
	if err := n.Init.WaitEnded(20 * time.Second); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	if id, err := machine.NamespaceID(c.netns(n.Name)); err == nil {
		if _, err := machine.EndAll(map[machine.Inode]bool{id: true}, 0); err != nil { // a shell of the user's
			return err
		}
	}
	if err := machine.RemoveNamespace(c.netns(n.Name)); err != nil {
		return err
	}
	// The kernel removes the other end of the link when the namespace is gone, which is soon, and
	// the name is needed again.
	err := eventually(10*time.Second, func() error { return unlink(c.netns(worldName), n.Name) })
	// A kubelet would look for the containers of the cgroups that it finds, for seconds each.
	groups, groupsErr := findCgroups()
	if groupsErr == nil {
		groupsErr = eventually(5*time.Second, func() error { return groups.remove(nodeCgroup(st.Name, n.Name)) })
	}
	return errors.Join(err, groupsErr, os.RemoveAll(filepath.Join(c.nodeDir(n.Name), "run")), os.RemoveAll(filepath.Join(c.nodeDir(n.Name), "node", importedTag)))
}

// startNode starts a node's first process in namespaces of its own. It does not wait for it to be
// Ready.
func (c *Cluster) startNode(st *state, n *node, images imageFiles) error {
	if err := n.Create(c.netns(worldName), c.netns(n.Name), st.plan().world(), st.Cloud == ""); err != nil {
		return err
	}
	if st.Cloud != "" && st.DualStack {
		if err := joinIPv6(n.Host, c.netns(worldName), c.netns(n.Name)); err != nil {
			return err
		}
	}
	if st.CNI == PTP {
		var others []*node
		for _, o := range st.Nodes {
			if o != n {
				others = append(others, o)
			}
		}
		if err := routesTo(c.netns(n.Name), "eth0", others); err != nil {
			return err
		}
	}
	groups, err := findCgroups()
	if err != nil {
		return err
	}
	if err := groups.create(nodeCgroup(st.Name, n.Name)); err != nil {
		return err
	}
	if err := c.writeNode(st, n, images.files, images.early); err != nil {
		return fmt.Errorf("files of node %s: %w", n.Name, err)
	}
	n.Init, err = machine.Daemon{
		Namespace: c.netns(n.Name), Log: c.log(n.Name), Argv: c.self("kube-node", "--dir", c.nodeDir(n.Name)),
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}.Start()
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	n.Killed = false
	return nil
}

// Kill ends a node as a power cut does. Its disk stays; StartNode brings it back.
func (c *Cluster) Kill(name string) error {
	return c.withLock(func() error {
		st, n, err := c.find(name)
		if err != nil {
			return err
		}
		if err := c.powerOff(st, n); err != nil {
			return err
		}
		n.Killed = true
		c.say("node %s is off; Kubernetes notices within a minute. `hawser sandbox node start %s --name %s` brings it back", n.Name, n.Name, st.Name)
		return c.save(st)
	})
}

// StartNode starts a node that was killed, and waits until it is Ready.
func (c *Cluster) StartNode(ctx context.Context, name string) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	return c.withLock(func() error {
		st, n, err := c.find(name)
		if err != nil {
			return err
		}
		if n.Init.Alive() {
			c.say("node %s is running", n.Name)
			return nil
		}
		c.cfg.Mode, c.cfg.CNI, c.cfg.BinDir = st.Mode, st.CNI, st.BinDir
		p, err := c.prepare(ctx)
		if err != nil {
			return err
		}
		if st.CNI != PTP {
			if _, err := c.makeHawserImage(); err != nil {
				return err
			}
		}
		since := time.Now()
		if err := errors.Join(c.bootNode(st, n, p.images), c.save(st)); err != nil {
			return err
		}
		return c.waitNodes(ctx, st, []*node{n}, since)
	})
}

func (c *Cluster) find(name string) (*state, *node, error) {
	st, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	n := st.node(name)
	if n == nil {
		return nil, nil, fmt.Errorf("no node %q in cluster %q: there are %s", name, st.Name, strings.Join(nodeNames(st), ", "))
	}
	return st, n, nil
}

func nodeNames(st *state) []string {
	var names []string
	for _, n := range st.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// Places returns the names that Exec knows: those of the nodes, and the others.
func (c *Cluster) Places() (nodes, others []string, err error) {
	st, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	return nodeNames(st), []string{masterName, worldName}, nil
}

// Exec replaces the calling process with a command in every namespace of a node, or in the network
// of the control plane or the world; so it returns only on failure. On a node the command finds the
// programs of Kubernetes and of this product in PATH; it is in the node's cgroup, as what the node
// itself runs is.
func (c *Cluster) Exec(place string, argv []string) error {
	st, err := c.load()
	if err != nil {
		return err
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return err
	}
	enter, path := []string{"nsenter", "--net=" + c.netns(place)}, st.BinDir+":"+st.Programs+":"+os.Getenv("PATH")
	n := st.node(place)
	switch {
	case n != nil:
		if !n.Init.Alive() {
			return fmt.Errorf("node %s is off: `hawser sandbox node start %s --name %s`", n.Name, n.Name, st.Name)
		}
		groups, err := findCgroups()
		if err != nil {
			return err
		}
		for _, dir := range groups.dirs {
			at := filepath.Join(dir, nodeCgroup(st.Name, n.Name))
			if dir == groups.unified {
				at = filepath.Join(at, leafCgroup)
			}
			if err := os.WriteFile(filepath.Join(at, "cgroup.procs"), []byte("0"), 0o644); err != nil {
				return fmt.Errorf("join the node's cgroup: %w", err)
			}
		}
		enter = []string{"nsenter", "-t", fmt.Sprint(n.Init.PID), "-m", "-p", "-n", "-u", "-i", "-C"}
		path = nodePath
	case place == masterName || place == worldName:
	default:
		return fmt.Errorf("no place %q in cluster %q: there are %s, %s and %s", place, st.Name, strings.Join(nodeNames(st), ", "), masterName, worldName)
	}
	env := []string{"HAWSER_SANDBOX=" + st.Name, "HAWSER_SANDBOX_PLACE=" + place}
	if n == nil {
		env = append(env, "KUBECONFIG="+c.path("pki", "admin.kubeconfig"))
	}
	enter = append(enter, "--", "env", "PATH="+path)
	return fmt.Errorf("run %s: %w", strings.Join(argv, " "), unix.Exec(nsenter, append(enter, argv...), environ(env...)))
}

// Kubectl replaces the calling process with kubectl for this cluster.
func (c *Cluster) Kubectl(args []string) error {
	st, err := c.load()
	if err != nil {
		return err
	}
	program := filepath.Join(st.Programs, "kubectl")
	return fmt.Errorf("run kubectl: %w", unix.Exec(program, append([]string{"kubectl"}, args...), environ("KUBECONFIG="+c.Kubeconfig())))
}

// environ is this process's environment with these variables instead of its own. Of two of one name
// a program may take either.
func environ(set ...string) []string {
	own := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(set, func(s string) bool { return strings.HasPrefix(s, name+"=") })
	})
	return append(own, set...)
}

// Shell is Exec of a shell that says where it is.
func (c *Cluster) Shell(place string) error {
	return c.Exec(place, []string{"env", fmt.Sprintf("PS1=%s/%s# ", c.cfg.Name, place), "bash", "--norc"})
}
