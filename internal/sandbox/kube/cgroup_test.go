package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/testenv"
)

// TestHierarchies makes and removes a node's cgroups as they are mounted on this machine, and on
// one that has those of version 2 only.
func TestHierarchies(t *testing.T) {
	testenv.RequireRoot(t)
	t.Run("here", func(t *testing.T) { tryCgroups(t) })
	const only = "HAWSER_TEST_CGROUP2_ONLY"
	if os.Getenv(only) != "" {
		return
	}
	t.Run("version 2 only", func(t *testing.T) {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		const script = "mount --make-rprivate / && umount -l /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$0\" -test.run='^TestHierarchies$' -test.v"
		cmd := exec.Command("sh", "-c", script, exe)
		cmd.Env = append(os.Environ(), only+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestHierarchies/here") || !strings.Contains(string(out), "one hierarchy, of version 2") {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}

func tryCgroups(t *testing.T) {
	groups, err := findCgroups()
	if err != nil {
		t.Fatal(err)
	}
	if len(groups.dirs) == 1 && groups.unified == cgroupRoot {
		t.Log("one hierarchy, of version 2")
	}
	path := nodeCgroup(fmt.Sprintf("test-%d", os.Getpid()), "n1")
	t.Cleanup(func() {
		if err := groups.remove(filepath.Dir(path)); err != nil {
			t.Error(err)
		}
		for _, dir := range groups.dirs {
			if _, err := os.Stat(filepath.Join(dir, filepath.Dir(path))); err == nil {
				t.Errorf("%s is left", filepath.Join(dir, filepath.Dir(path)))
			}
		}
	})
	if err := groups.create(path); err != nil {
		t.Fatal(err)
	}
	for _, dir := range groups.dirs {
		f, err := os.OpenFile(filepath.Join(dir, path, "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", "echo 0 >&3")
		cmd.ExtraFiles = []*os.File{f}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("no process can join %s: %v: %s", filepath.Join(dir, path), err, out)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
