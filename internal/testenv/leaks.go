package testenv

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest/leaktest"
)

// VerifyTestMain runs the tests of a package, for its TestMain, and fails if they leave goroutines
// behind.
func VerifyTestMain(m goleak.TestingM, ignore ...goleak.Option) {
	leaktest.VerifyTestMain(m, ignore...)
}

// VerifyNone fails the test if there are goroutines but those to ignore. Defer it first in a test
// that is not parallel.
func VerifyNone(t testing.TB, ignore ...goleak.Option) {
	t.Helper()
	leaktest.VerifyNone(t, ignore...)
}

// CheckLeaks remembers the goroutines, file descriptors, links of the current network namespace,
// and mounted namespaces of the process, and fails the test if there are more of them when it ends.
// Call it first in a test, so that it looks after every other cleanup has run. The test must not
// be parallel.
func CheckLeaks(t testing.TB) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	fds, err := openFiles()
	if err != nil {
		t.Fatalf("list file descriptors: %v", err)
	}
	machine, err := MachineState()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return // a failed test leaves things behind: the first fault is the one to report
		}
		if err := leaktest.Find(ignore); err != nil {
			t.Errorf("goroutines left behind: %v", err)
		}
		eventually(t, "file descriptors", func() ([]string, error) {
			now, err := openFiles()
			return extra(fds, now), err
		})
		eventually(t, "links, namespaces or mounts", func() ([]string, error) {
			now, err := MachineState()
			return extra(machine, now), err
		})
	})
}

// MachineState lists, sorted, what a network test may leave on the machine: links of the current
// namespace, mounted network namespaces and bpf file systems. Compare it before and after. Tests of
// other processes run at the same time and mount theirs below the system's directory for temporary
// files: what is there is left out, unless its path holds one of own.
func MachineState(own ...string) ([]string, error) {
	var out []string
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, i := range ifs {
		out = append(out, "link "+i.Name)
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		before, after, _ := strings.Cut(s.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 1 || (kind[0] != "nsfs" && kind[0] != "bpf") {
			continue
		}
		ours := slices.ContainsFunc(own, func(part string) bool { return strings.Contains(fields[4], part) })
		if strings.HasPrefix(fields[4], os.TempDir()+"/") && !ours {
			continue
		}
		out = append(out, "mount "+kind[0]+" "+fields[4])
	}
	sort.Strings(out)
	return out, s.Err()
}

// openFiles describes each open descriptor by its target; sockets and pipes by their kind only,
// because their numbers differ from one to the next.
func openFiles() ([]string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // the descriptor of the directory being read
		}
		if i := strings.Index(target, ":["); i > 0 && !strings.HasPrefix(target, "net:") {
			target = target[:i]
		}
		if strings.HasPrefix(target, "/proc/") && strings.HasSuffix(target, "/fd") {
			continue
		}
		out = append(out, target)
	}
	sort.Strings(out)
	return out, nil
}

// extra returns the items that after has more often than before.
func extra(before, after []string) []string {
	seen := map[string]int{}
	for _, s := range before {
		seen[s]++
	}
	var out []string
	for _, s := range after {
		if seen[s]--; seen[s] < 0 {
			out = append(out, s)
		}
	}
	return out
}

// eventually polls until left returns nothing, and reports what is still there at the end. It
// polls because the kernel offers no notice of the end of a namespace, and other goroutines may
// have descriptors to close.
func eventually(t testing.TB, what string, left func() ([]string, error)) {
	t.Helper()
	deadline := time.Now().Add(leaktest.Timeout)
	for {
		items, err := left()
		if err == nil && len(items) == 0 {
			return
		}
		if time.Now().After(deadline) {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			} else {
				t.Errorf("%s left behind:\n  %s", what, strings.Join(items, "\n  "))
			}
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
