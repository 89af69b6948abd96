package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/cni"
	"github.com/hawser-net/hawser/internal/testenv"
)

// foreignLink is the name of a pod's interface as other network plugins, too, give it.
const foreignLink = "lxc0123456789ab"

// foreignPod makes a pod's interface of another plugin, and a file in that plugin's state.
func (n *machineNode) foreignPod() (file string) {
	n.t.Helper()
	testenv.Connect(n.t, n.ns, foreignLink, nil, testenv.NewNetNS(n.t), "eth0", []string{"10.0.1.50/32"})
	file = n.path("run/state/1234/ep_config.h")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
		n.t.Fatal(err)
	}
	return file
}

// TestPodsOfAnotherPlugin: an agent starts on a node where pods of another network plugin run.
// Their interfaces, objects and state stay, and those of its own pods that are left over go.
func TestPodsOfAnotherPlugin(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	const grace = 3 * time.Second
	n.flags = append(n.flags, "--ipam", "kubernetes", "--orphan-link-grace-period", grace.String())
	state := n.foreignPod()
	runs := c.object(n, "foreign", nil)
	runs.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1.50", PodIPs: []corev1.PodIP{{IP: "10.0.1.50"}}}
	if _, err := c.client.Kube.CoreV1().Pods("default").UpdateStatus(t.Context(), runs, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, ip := range map[string]string{"foreign": "10.0.1.50", "gone": "10.0.1.51"} {
		if _, err := c.endpoints().Create(t.Context(), &v2.CiliumEndpoint{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Status: v2.EndpointStatus{
				State: v2.EndpointReady, Identity: &v2.EndpointIdentity{ID: 4711},
				Networking: &v2.EndpointNetworking{NodeIP: node4, Addressing: []*v2.AddressPair{{IPv4: ip}}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	links := func() (out []string) {
		return slices.DeleteFunc(ns.LinkNames(t), func(name string) bool { return !strings.HasPrefix(name, "lxc") })
	}
	there := func(name string) bool {
		_, err := c.endpoints().Get(t.Context(), name, metav1.GetOptions{})
		return !apierrors.IsNotFound(err)
	}
	for round := range 2 { // the second agent finds what the first has left
		n.start()
		left := fmt.Sprintf("left-%d", round)
		c.object(n, left, nil)
		if err := n.newPod(left, nil).add("HAWSER_CNI_CRASH_AT=" + cni.StepAddLink); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		if got := links(); len(got) != 2+round {
			t.Fatalf("there are %q before the orphan is removed", got)
		}
		mine := fmt.Sprintf("mine-%d", round)
		c.pod(n, mine, nil)
		testenv.Eventually(t, time.Minute, func() string {
			switch got := links(); {
			case there("gone"):
				return "the object of a pod that is gone is there"
			case !there(mine):
				return "the node's own pod has no object"
			case len(got) > 2+round:
				return fmt.Sprintf("there are %q", got)
			}
			return ""
		})
		time.Sleep(2 * grace) // nothing reports what does not happen
		if got := links(); !slices.Contains(got, foreignLink) || len(got) != 2+round {
			t.Errorf("of the interfaces of pods there are %q", got)
		}
		if !there("foreign") {
			t.Error("the object of a pod that runs is gone")
		}
		if _, err := os.Stat(state); err != nil {
			t.Errorf("the other plugin's state: %v", err)
		}
		n.kill()
	}
}

// cleanUp calls the agent's command on the node.
func (n *machineNode) cleanUp(flags ...string) (out string, err error) {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(n.bin, "hawser-agent"), append([]string{
		"cleanup", "--state-dir", n.path("run"), "--socket-path", n.path("run/a.sock"), "--hubble-socket-path", n.path("run/hubble.sock"), "--bpf-root", n.path("bpf"),
	}, flags...)...)
	var text []byte
	err = n.ns.Do(func() (err error) {
		text, err = cmd.CombinedOutput()
		return err
	})
	return string(text), err
}

// TestCleanUpBesideAnother: where another plugin serves the node by now, nothing is removed. Where
// it only has something there, that stays, and what is Hawser's goes.
func TestCleanUpBesideAnother(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	n.attached("p", nil)
	n.kill()
	state := n.foreignPod()
	conf := n.path("05-cilium.conflist")
	const of = `{"cniVersion": "0.3.1", "name": "cilium", "plugins": [{"type": "cilium-cni"}]}`
	backup := n.path("10-other.conflist.cilium_bak")
	if err := errors.Join(os.WriteFile(conf, []byte(of), 0o600), os.WriteFile(backup, nil, 0o600), os.Remove(n.path("run/a.sock"))); err != nil {
		t.Fatal(err)
	}
	agent, err := net.Listen("unix", n.path("run/a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	foreign := func(when string) {
		t.Helper()
		if text, err := os.ReadFile(conf); err != nil || string(text) != of {
			t.Errorf("%s: the CNI configuration is %q, %v", when, text, err)
		}
		for _, path := range []string{state, backup} {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		if !slices.Contains(n.ns.LinkNames(t), foreignLink) {
			t.Errorf("%s: the other plugin's interface is gone", when)
		}
	}
	before := n.ns.LinkNames(t)
	out, err := n.cleanUp("--write-cni-conf-when-ready", conf, "--cni-log-file", n.path("cni.log"))
	if err == nil || !strings.Contains(out, n.path("run/a.sock")) || !strings.Contains(out, "nothing was removed") {
		t.Errorf("where an agent answers: %v\n%s", err, out)
	}
	foreign("refused")
	records, _ := filepath.Glob(n.path("run/state/*/endpoint.json"))
	if _, err := os.Stat(n.path("run/a.sock")); err != nil || len(records) != 1 || !slices.Equal(n.ns.LinkNames(t), before) {
		t.Errorf("of what was there are left %v, records %v, %v", n.ns.LinkNames(t), records, err)
	}
	agent.Close()
	out, err = n.cleanUp("--write-cni-conf-when-ready", conf, "--cni-log-file", n.path("cni.log"))
	for _, want := range []string{conf, "another plugin's (cilium-cni)", foreignLink, filepath.Dir(state)} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("beside another plugin: %v, without %q:\n%s", err, want, out)
		}
	}
	foreign("cleaned up")
	if got := n.ns.LinkNames(t); slices.ContainsFunc(got, func(name string) bool {
		return strings.HasPrefix(name, "hawser_") || strings.HasPrefix(name, "lxc") && name != foreignLink
	}) {
		t.Errorf("of Hawser's interfaces there are left %q", got)
	}
	entries, err := os.ReadDir(n.path("run/state"))
	if err != nil || len(entries) != 1 {
		t.Errorf("of the state there are left %v, %v", entries, err)
	}
	if pins, err := os.ReadDir(n.path("bpf")); err != nil || len(pins) > 0 {
		t.Errorf("of what was pinned there are left %v, %v", pins, err)
	}
}
