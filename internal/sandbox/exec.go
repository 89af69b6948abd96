package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// Exec replaces the calling process with a command that runs in the network namespace of a pod, a
// node or the world, so it returns only on failure. The command sees the sandbox's names in
// /etc/hosts and its own links in /sys; on a node it also finds the product's programs in PATH, the
// node's agent at CILIUM_SOCK, the flows of all nodes at HUBBLE_SERVER and the node's BPF file
// system at its usual place.
func (s *Sandbox) Exec(name string, argv []string) error {
	st, err := s.running()
	if err != nil {
		return err
	}
	ns, isNode := "", st.node(name) != nil
	switch {
	case isNode || name == worldName:
		ns = s.netns(name)
	case st.pod(name) != nil:
		ns = s.netns("pod-" + name)
	default:
		return fmt.Errorf("no pod or node %q in sandbox %q: there are %s, the nodes %s to n%d, and %s",
			name, s.cfg.Name, podNames(st), "n1", len(st.Nodes), worldName)
	}
	if err := os.Setenv("PATH", st.BinDir+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil {
		return err
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	if program, err = filepath.Abs(program); err != nil {
		return err
	}
	env := append(os.Environ(), "HAWSER_SANDBOX="+s.cfg.Name, "HAWSER_SANDBOX_PLACE="+name)
	if isNode {
		flows := s.flowSocket(name)
		if st.Relay.Alive() {
			flows = s.relaySocket()
		}
		env = append(env, s.nodeEnv(name, flows)...)
	}
	return machine.InNamespace(ns, func() error {
		// This thread gets its own view of the file system; execve then makes it the process.
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return fmt.Errorf("new mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("private mounts: %w", err)
		}
		if err := unix.Mount(s.hostsFile(), "/etc/hosts", "", unix.MS_BIND, ""); err != nil && err != unix.ENOENT {
			return fmt.Errorf("hosts file: %w", err)
		}
		// A convenience: without it the links shown in /sys/class/net are the machine's.
		if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err == nil && isNode {
			_ = unix.Mount(s.nodePath(name, "bpf"), "/sys/fs/bpf", "", unix.MS_BIND, "")
		}
		return fmt.Errorf("run %s: %w", strings.Join(argv, " "), unix.Exec(program, argv, env))
	})
}

// Shell replaces the calling process with an interactive shell; see Exec.
func (s *Sandbox) Shell(name string) error {
	shell := []string{"/bin/sh"}
	if bash, err := exec.LookPath("bash"); err == nil {
		shell = []string{bash, "--norc"} // the user's own prompt would hide where one is
	}
	if err := os.Setenv("PS1", fmt.Sprintf("%s/%s# ", s.cfg.Name, name)); err != nil {
		return err
	}
	return s.Exec(name, shell)
}
