package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/kube/image"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
	"github.com/hawser-net/hawser/internal/testenv"
)

// needPrograms skips the test unless these programs of Kubernetes are built.
func needPrograms(t *testing.T, names ...string) {
	t.Helper()
	testenv.RequireRoot(t)
	dir, err := parts.Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Skipf("needs %s of Kubernetes: `make kube-programs` builds it (%v)", name, err)
		}
	}
}

// kubeSandbox runs `sandbox ARGS` on directories of the test's own.
type kubeSandbox struct {
	t          *testing.T
	name       string
	root, data string
}

func newKubeSandbox(t *testing.T, name string) *kubeSandbox {
	dir, err := os.MkdirTemp("", "hawser-sb-")
	if err != nil {
		t.Fatal(err)
	}
	s := &kubeSandbox{t: t, name: name, root: filepath.Join(dir, "r"), data: filepath.Join(dir, "d")}
	t.Cleanup(func() {
		s.ok("down")
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run runs the command in a process of its own, as people do: exec replaces it.
func (s *kubeSandbox) run(args ...string) (string, error) {
	cmd := exec.CommandContext(s.t.Context(), os.Args[0], append([]string{helper, "--name", s.name, "--root-dir", s.root, "--data-dir", s.data}, args...)...)
	if s.t.Context().Err() != nil { // in a cleanup
		cmd = exec.Command(cmd.Path, cmd.Args[1:]...)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	s.t.Logf("%s: %v\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	return stdout.String(), err
}

func (s *kubeSandbox) ok(args ...string) string {
	s.t.Helper()
	out, err := s.run(args...)
	if err != nil {
		s.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return out
}

// left lists what a cluster must not leave: links of the machine, mounts and cgroups.
func (s *kubeSandbox) left() []string {
	s.t.Helper()
	out := machineState(s.t)
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasSuffix(path, "/hawser-sandbox/"+s.name) {
			out = append(out, "cgroup "+path)
			return filepath.SkipDir
		}
		return nil // cgroups of others come and go
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func TestKubernetesAPIOnly(t *testing.T) {
	needPrograms(t, parts.ControlPlane()...)
	s := newKubeSandbox(t, "kt-api")
	before := s.left()
	s.ok("up", "--kubernetes=api")
	if out := s.ok("kubectl", "--", "create", "namespace", "x"); !strings.Contains(out, "namespace/x created") {
		t.Errorf("kubectl: %q", out)
	}
	if out, err := s.run("up"); err == nil || !strings.Contains(out+err.Error(), "exit") {
		t.Errorf("a sandbox without Kubernetes took the name: %q, %v", out, err)
	}
	var st kube.Status
	if err := json.Unmarshal([]byte(s.ok("status", "-o", "json")), &st); err != nil {
		t.Fatal(err)
	}
	if len(st.Processes) != 5 || len(st.Nodes) != 0 || !st.Healthy() {
		t.Errorf("status: %+v", st)
	}

	// What has died is started again, and nothing is lost.
	for _, p := range st.Processes {
		if out, err := exec.Command("kill", "-KILL", jsonNumber(p.PID)).CombinedOutput(); err != nil {
			t.Fatalf("kill %s: %v %s", p.Name, err, out)
		}
	}
	if _, err := s.run("status"); err == nil {
		t.Error("status of a cluster without processes is a success")
	}
	s.ok("up", "--kubernetes=api")
	if out := s.ok("kubectl", "--", "get", "namespace", "x", "-o", "name"); out != "namespace/x\n" {
		t.Errorf("after a restart: %q", out)
	}
	s.ok("down")
	if diff := cmp.Diff(before, s.left()); diff != "" {
		t.Errorf("left on the machine: %s", diff)
	}
}

func jsonNumber(n int) string {
	data, _ := json.Marshal(n)
	return string(data)
}

// TestKubernetesNode brings up a node, runs pods on it, cuts its power and boots it, and looks that
// nothing is left of it all.
func TestKubernetesNode(t *testing.T) {
	needPrograms(t, append(parts.ControlPlane(), parts.Node()...)...)
	for _, program := range []string{"runc", "iptables", "conntrack", "/usr/lib/cni/ptp", "busybox", "gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: `hawser sandbox up --kubernetes --yes` installs it", program)
		}
	}
	s := newKubeSandbox(t, "kt-node")
	before := s.left()
	settings := []string{"/proc/sys/kernel/panic", "/proc/sys/vm/overcommit_memory"}
	machineSettings := contents(t, settings)
	s.ok("up", "--kubernetes", "--nodes", "1", "--dual-stack", "--cni", "ptp")
	kubectl := func(args ...string) string {
		t.Helper()
		return s.ok(append([]string{"kubectl", "--"}, args...)...)
	}
	kubectl("create", "deployment", "web", "--image="+image.AgnhostName, "--replicas=2", "--", "/agnhost", "netexec")
	kubectl("expose", "deployment", "web", "--port=80", "--target-port=8080")
	kubectl("run", "client", "--image="+image.AgnhostName)
	kubectl("wait", "--for=condition=Available", "deployment/web", "--timeout=60s")
	kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")
	kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
	asks := func() {
		t.Helper()
		eventually(t, 20*time.Second, func() error {
			out, err := s.run("kubectl", "--", "exec", "client", "--", "curl", "-sS", "-m", "3", "http://web/hostname")
			if err == nil && !strings.HasPrefix(out, "web-") {
				t.Fatalf("the service answered %q", out)
			}
			return err
		})
	}
	asks()
	if out := s.ok("exec", "n1", "--", "sh", "-c", "hostname; ls /etc/cni/net.d; cat /proc/sys/vm/overcommit_memory"); out != "n1\n10-ptp.conflist\n1\n" {
		t.Errorf("on the node: %q", out)
	}
	if diff := cmp.Diff(machineSettings, contents(t, settings)); diff != "" {
		t.Errorf("the kubelet changed the machine: %s", diff)
	}

	s.ok("node", "kill", "n1")
	if _, err := s.run("status"); err == nil {
		t.Error("status of a cluster without its node is a success")
	}
	s.ok("node", "start", "n1")
	kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
	asks()
	s.ok("status")
	if out, err := s.run("node", "kill", "n2"); err == nil {
		t.Errorf("a node that is not there was killed: %q", out)
	}

	s.ok("down")
	if diff := cmp.Diff(before, s.left()); diff != "" {
		t.Errorf("left on the machine: %s", diff)
	}
	for _, dir := range []string{s.root, s.data} {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}

func contents(t *testing.T, files []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[f] = string(data)
	}
	return out
}

func eventually(t *testing.T, timeout time.Duration, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %v: %v", timeout, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}
