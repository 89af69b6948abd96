// Package nodemanagertest is what the node manager expects of a cloud, as tests that each provider
// passes against a cloud of this machine by the cloud's own SDK: [Run]. A [Trial] is what they are
// made of.
package nodemanagertest

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// Timeout is for a machine that does much else.
const Timeout = 3 * time.Minute

// Cloud is a cloud of this machine, and how a provider speaks to it.
type Cloud interface {
	// Provider makes a provider. It releases what is superfluous, and says which interfaces may be
	// collected.
	Provider(ctx context.Context, b *nodemanager.Budget) (p nodemanager.Provider, collected map[string]string, err error)
	// Disturbed is how it is disturbed.
	Disturbed() *cloud.Disturbances
	Lag(time.Duration)
	Pages(int)
	// Start runs an instance whose pods may have 27 addresses at least, and returns what its agent
	// says of it. All get their addresses from one subnet. It is one for which action is called as
	// it grows and shrinks; "" is whichever.
	Start(name, action string) (v2.NodeSpec, error)
	Terminate(instance string)
	// Exhaust leaves so many addresses of the subnet free; a large number is all.
	Exhaust(free int)
	// Assigned returns the addresses that an instance's pods may have, each with its interface, or
	// what is wrong with the interfaces.
	Assigned(instance string) (map[string]string, error)
	// CheckStatus compares the status of a node with the cloud.
	CheckStatus(n *v2.CiliumNode) string
	// Loose returns interfaces that are not attached.
	Loose() []string
}

// Trial is an API server and a cloud.
type Trial struct {
	*testing.T
	*controllers.Env
	Cloud Cloud
}

// Run runs a node manager as quick as a test needs it.
func (tr *Trial) Run(change func(*nodemanager.Config)) (stop func()) {
	tr.Helper()
	return tr.Env.Run(tr.T, func(ctx context.Context, m manager.Manager, log *slog.Logger) error {
		cfg := nodemanager.Defaults()
		cfg.QPS, cfg.Burst, cfg.Resync, cfg.MaxLag, cfg.ReleaseDelay, cfg.GCInterval, cfg.ReleaseExcess = 200, 100, time.Second, 2*time.Second, 0, time.Second, true
		if change != nil {
			change(&cfg)
		}
		metrics, err := nodemanager.NewMetrics(prometheus.NewRegistry())
		if err != nil {
			return err
		}
		p, collected, err := tr.Cloud.Provider(ctx, nodemanager.NewBudget(cfg, metrics))
		if err != nil {
			return err
		}
		cfg.GCTags = collected
		return nodemanager.Setup(ctx, m, cfg, p, metrics, log)
	})
}

// Node runs an instance and makes its node.
func (tr *Trial) Node(name string, change func(*v2.NodeSpec)) {
	tr.Helper()
	tr.nodeFor(name, "", change)
}

func (tr *Trial) nodeFor(name, action string, change func(*v2.NodeSpec)) {
	tr.Helper()
	spec, err := tr.Cloud.Start(name, action)
	if err != nil {
		tr.Fatal(err)
	}
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if change != nil {
		change(&n.Spec)
	}
	tr.Create(tr.T, n)
}

// Get reads a node.
func (tr *Trial) Get(name string) *v2.CiliumNode {
	tr.Helper()
	n := &v2.CiliumNode{}
	if err := tr.Client.Get(tr.Context(), types.NamespacedName{Name: name}, n); err != nil {
		tr.Fatal(err)
	}
	return n
}

// Agent does once what the agent of a node does that has use pods: it takes and gives back
// addresses, says so, and answers what is marked.
func (tr *Trial) Agent(name string, use int) *v2.CiliumNode {
	tr.Helper()
	for {
		n := tr.Get(name)
		before := n.DeepCopy()
		used := v2.AllocationMap{}
		for a := range n.Status.IPAM.Used {
			if len(used) < use {
				used[a] = v2.AllocationIP{Owner: "default/pod"}
			}
		}
		for a := range n.Spec.IPAM.Pool {
			if _, asked := n.Status.IPAM.ReleaseIPs[a]; len(used) < use && !asked {
				used[a] = v2.AllocationIP{Owner: "default/pod"}
			}
		}
		n.Status.IPAM.Used = used
		for a, s := range n.Status.IPAM.ReleaseIPs {
			_, has := used[a]
			switch {
			case s == v2.IPReleased:
				delete(n.Status.IPAM.ReleaseIPs, a)
			case s == v2.IPMarkedForRelease && has:
				n.Status.IPAM.ReleaseIPs[a] = v2.IPDoNotRelease
			case s == v2.IPMarkedForRelease:
				n.Status.IPAM.ReleaseIPs[a] = v2.IPReadyForRelease
			}
		}
		if fmt.Sprint(before.Status.IPAM) == fmt.Sprint(n.Status.IPAM) {
			return n
		}
		err := tr.Client.Status().Update(tr.Context(), n)
		if err == nil {
			return n
		}
		if !apierrors.IsConflict(err) {
			tr.Fatal(err)
		}
	}
}

// audit compares what the cloud has assigned to a node's instance with what its object says, in
// both directions.
func (tr *Trial) audit(n *v2.CiliumNode) string {
	assigned, err := tr.Cloud.Assigned(n.Spec.InstanceID)
	if err != nil {
		return err.Error()
	}
	for a, from := range assigned {
		if n.Spec.IPAM.Pool[a].Resource != from {
			return fmt.Sprintf("%s is assigned to %s, and the pool says %q", a, from, n.Spec.IPAM.Pool[a].Resource)
		}
	}
	for a := range n.Spec.IPAM.Pool {
		if assigned[a] == "" {
			return a + " is in the pool and not assigned"
		}
	}
	for a := range n.Status.IPAM.Used {
		if assigned[a] == "" {
			return a + " is used and not assigned"
		}
	}
	return tr.Cloud.CheckStatus(n)
}

// Converges waits until a node with use pods has between least and most addresses, all of which are
// its, and says fault.
func (tr *Trial) Converges(name string, use, least, most int, fault string) *v2.CiliumNode {
	tr.Helper()
	var n *v2.CiliumNode
	controllers.Eventually(tr.T, Timeout, func() string {
		n = tr.Agent(name, use)
		if said := n.Status.IPAM.OperatorStatus.Error; fault == "" && said != "" || !strings.Contains(said, fault) {
			return fmt.Sprintf("the status says %q, not %q", said, fault)
		}
		if got := len(n.Spec.IPAM.Pool); got < least || got > most {
			return fmt.Sprintf("%d addresses, not %d to %d", got, least, most)
		}
		if len(n.Status.IPAM.Used) != use {
			return fmt.Sprintf("%d of %d pods have an address", len(n.Status.IPAM.Used), use)
		}
		if len(n.Status.IPAM.ReleaseIPs) > 0 {
			return fmt.Sprint("under way: ", n.Status.IPAM.ReleaseIPs)
		}
		return tr.audit(n)
	})
	return n
}

// Missing reports that a text lacks another; "" if it has it.
func Missing(text, want string) string {
	if strings.Contains(text, want) {
		return ""
	}
	return fmt.Sprintf("%q does not say %q", text, want)
}
