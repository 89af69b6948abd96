package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Places on a node. They are the same on each.
const (
	nodeFiles   = "/run/node"
	criSocket   = "/run/containerd/containerd.sock"
	importedTag = "images-imported" // a file below nodeFiles: all images are there
)

// initConfig configures the first process of a node, in the file node/init.json of the node's
// directory.
type initConfig struct {
	Name   string
	Cgroup string // the node's, as a path below each hierarchy
	// Programs and BinDir are directories that the node sees at nodeFiles/kube and nodeFiles/bin.
	Programs, BinDir string
	Kubelet, Proxy   []string
	// Images are files to import, those that the kubelet can't do without first.
	Images []string
	// Early is how many of the images are imported before the kubelet starts.
	Early int
}

// machineSettings are machine-wide settings that the kubelet wants. The node is shown files with
// these values; the machine is not changed.
var machineSettings = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// RunNode is the first process of a node, in new namespaces of mounts, processes, host name and
// IPC. It enters the node's cgroups and runs itself again with inside set, so that they are the
// root of all that the node sees. Then it arranges the node's file system in dir, starts
// containerd, the kubelet and perhaps kube-proxy, and starts them again when they end. When it
// ends, the kernel ends every process of the node.
func RunNode(ctx context.Context, dir string, inside bool) error {
	if os.Getpid() != 1 {
		return errors.New("this is how a cluster runs its nodes; it is not for people")
	}
	// Sources of mounts are named from here: the places they are in get covered.
	if err := os.Chdir(dir); err != nil {
		return err
	}
	data, err := os.ReadFile("node/init.json")
	if err != nil {
		return err
	}
	var cfg initConfig
	if err := json.Unmarshal(data, &cfg); err != nil {
		return fmt.Errorf("init.json: %w", err)
	}
	if !inside {
		return cfg.enterCgroups(append(os.Args, "--inside"))
	}
	if err := cfg.arrange(); err != nil {
		return fmt.Errorf("file system of node %s: %w", cfg.Name, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for k, v := range map[string]string{"PATH": nodePath, "HOME": "/root", "NODE_NAME": cfg.Name} {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	return cfg.supervise(ctx)
}

const nodePath = nodeFiles + "/bin:" + nodeFiles + "/kube:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// enterCgroups joins the node's cgroup in each hierarchy and executes argv with a namespace of
// cgroups that begins there. It returns only on failure.
func (c *initConfig) enterCgroups(argv []string) error {
	groups, err := findCgroups()
	if err != nil {
		return err
	}
	for _, dir := range groups.dirs {
		if err := os.WriteFile(filepath.Join(dir, c.Cgroup, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return machine.OnThread(func() error { // of which execve makes the whole process
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			return fmt.Errorf("new cgroup namespace: %w", err)
		}
		return fmt.Errorf("run %s: %w", self, unix.Exec(self, argv, os.Environ()))
	})
}

// arrange makes the node's own view of the file system.
func (c *initConfig) arrange() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	steps := []func() error{dropNamespaces, c.kernelFiles, c.ownFiles, showSettings}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil { // the kubelet hands mounts on to pods
		return fmt.Errorf("shared mounts: %w", err)
	}
	return unix.Sethostname([]byte(c.Name))
}

// dropNamespaces gives up this copy of mounts that keep namespaces of the machine: those of another
// cluster would live as long as this node.
func dropNamespaces() error {
	mounts, err := machine.MountsBelow("")
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Kind != "nsfs" {
			continue
		}
		if err := unix.Unmount(m.Path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return fmt.Errorf("unmount %s: %w", m.Path, err)
		}
	}
	return nil
}

// kernelFiles mounts /proc and /sys as this node's namespaces have them, with a BPF file system of
// the node's own.
func (c *initConfig) kernelFiles() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", "/proc", "proc", flags, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	hierarchies, err := cgroupMounts()
	if err != nil {
		return err
	}
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount /sys: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", flags, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	for _, h := range hierarchies {
		if err := h.mount(); err != nil {
			return err
		}
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount /sys/fs/bpf: %w", err)
	}
	groups, err := findCgroups()
	if err != nil || groups.unified == "" {
		return err
	}
	// Out of the root, which could not pass controllers on with processes in it.
	leaf := filepath.Join(groups.unified, leafCgroup)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0o644)
}

// ownFiles covers the directories that a node writes to. The order matters: what a source is named
// by must not be covered yet.
func (c *initConfig) ownFiles() error {
	for _, dir := range []string{
		"run/node", "run/lock", "run/netns", "node/kube", "node/bin", "node/images", "var/lib", "var/log", "var/tmp", "var/cache",
		"opt/cni/bin", "tmp", "etc", "etc-work", "cni",
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Chmod("tmp", 0o1777), os.Chmod("var/tmp", 0o1777)); err != nil {
		return err
	}
	if err := os.Symlink("/run", "var/run"); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	binds := [][2]string{{"node", "run/node"}, {c.Programs, "run/node/kube"}, {c.BinDir, "run/node/bin"}}
	for i, image := range c.Images {
		file := fmt.Sprintf("run/node/images/%d.tar", i)
		if err := os.WriteFile("node/images/"+filepath.Base(file), nil, 0o600); err != nil {
			return err
		}
		binds = append(binds, [2]string{image, file})
	}
	binds = append(binds, [2]string{"run", "/run"}, [2]string{"opt", "/opt"}, [2]string{"tmp", "/tmp"})
	for _, b := range binds {
		if err := unix.Mount(b[0], b[1], "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", b[1], err)
		}
	}
	if err := unix.Mount("overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir=etc,workdir=etc-work"); err != nil {
		return fmt.Errorf("overlay on /etc: %w", err)
	}
	if err := os.MkdirAll("/etc/cni", 0o755); err != nil {
		return err
	}
	for _, b := range [][2]string{{"cni", "/etc/cni"}, {"var", "/var"}} {
		if err := unix.Mount(b[0], b[1], "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", b[1], err)
		}
	}
	return nil
}

func showSettings() error {
	dir := nodeFiles + "/settings"
	for name, value := range machineSettings {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "."))
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(file, []byte(value+"\n"), 0o644)); err != nil {
			return err
		}
		if err := unix.Mount(file, "/proc/sys/"+name, "", unix.MS_BIND, ""); err != nil && err != unix.ENOENT {
			return fmt.Errorf("show %s: %w", name, err)
		}
	}
	return nil
}

// supervise runs the node's services until ctx ends.
func (c *initConfig) supervise(ctx context.Context) error {
	// Many containers, many descriptors; the runtime would otherwise hand on what it found.
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	r := newReaper()
	services := make(chan error, 3)
	run := func(argv ...string) {
		go func() { services <- r.keep(ctx, argv) }()
	}
	run(filepath.Join(nodeFiles, "kube/containerd"), "--config", nodeFiles+"/containerd.toml")
	if err := c.importImages(ctx, r, 0, c.Early); err != nil {
		return err
	}
	run(c.Kubelet...)
	if len(c.Proxy) > 0 {
		run(c.Proxy...)
	}
	if err := c.importImages(ctx, r, c.Early, len(c.Images)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(nodeFiles, importedTag), nil, 0o644); err != nil {
		return err
	}
	fmt.Printf("node %s: all images are imported\n", c.Name)
	select {
	case err := <-services: // a program that can't even be started
		return err
	case <-ctx.Done():
		return nil // and with this process everything ends
	}
}

// importImages imports images from..to, except those that a node that was started again still has.
func (c *initConfig) importImages(ctx context.Context, r *reaper, from, to int) error {
	if from == to {
		return nil
	}
	for { // containerd answers soon
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", criSocket)
		if err == nil {
			_ = conn.Close()
			break
		}
		if !retry.Sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	for i := from; i < to; i++ {
		file := fmt.Sprintf("%s/images/%d.tar", nodeFiles, i)
		if err := importImage(ctx, r, file); err != nil {
			return err
		}
	}
	return nil
}

func importImage(ctx context.Context, r *reaper, file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	// The store keeps images over a restart of the node; the records of them are kept next to it.
	mark := fmt.Sprintf("/var/lib/containerd/imported-%d-%d", info.Size(), info.ModTime().UnixNano())
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	code, err := r.run(ctx, []string{filepath.Join(nodeFiles, "kube/ctr"), "-n", "k8s.io", "images", "import", "--local=true", file})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d, see the log", code)
	}
	if err != nil {
		return fmt.Errorf("import %s: %w", file, err)
	}
	return os.WriteFile(mark, nil, 0o644)
}
