// Package lab is a handle on a running cluster of namespaces (internal/sandbox/kube) for tests that
// disturb it: its API, the sockets of its agents, commands on its nodes, and the network namespaces
// of its pods, in which this process opens sockets of its own. So a pod needs no program but pause,
// and a flow is counted at both of its ends by one process.
//
// A Lab may be used by several goroutines at once.
package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Lab is one cluster.
type Lab struct {
	// Name of the cluster.
	Name string
	// Kube is a client with all rights.
	Kube kubernetes.Interface
	// Store is what keeps identities, or nil if they are objects of Kubernetes.
	Store kvstore.Backend

	program string
	custom  *rest.RESTClient // of api/v2
	alpha   *rest.RESTClient // of api/v2alpha1
	tiers   *rest.RESTClient // of ClusterNetworkPolicy
}

// open returns a handle on the cluster called name, which must run. program is the path of hawser.
// Close it.
func open(name, program string) (*Lab, error) {
	info, err := kube.Inspect(name)
	if err != nil {
		return nil, err
	}
	if info.CNI != kube.Hawser {
		return nil, fmt.Errorf("the network of cluster %q is %s, not Hawser", name, info.CNI)
	}
	config, err := clientcmd.BuildConfigFromFlags("", info.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 200, 400
	config.Timeout = time.Minute // a node that is filled keeps the whole machine busy
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	custom, err := customClient(config, v2.SchemeGroupVersion(), v2.AddToScheme)
	if err != nil {
		return nil, err
	}
	alpha, err := customClient(config, v2alpha1.SchemeGroupVersion(), v2alpha1.AddToScheme)
	if err != nil {
		return nil, err
	}
	tiers, err := customClient(config, schema.GroupVersion(policyv1alpha2.GroupVersion), policyv1alpha2.Install)
	if err != nil {
		return nil, err
	}
	l := &Lab{Name: name, Kube: client, program: program, custom: custom, alpha: alpha, tiers: tiers}
	if info.Store != "" {
		cfg := storedial.Defaults()
		cfg.Kind, cfg.Options = info.Store, map[string]string{info.Store + ".address": "unix://" + info.StoreSocket}
		l.Store, err = storedial.Open(context.Background(), cfg, slog.New(slog.DiscardHandler))
	}
	return l, err
}

// Close gives up the connection to the store.
func (l *Lab) Close() error {
	if l.Store == nil {
		return nil
	}
	return l.Store.Close()
}

// customClient speaks of the kinds of a group.
func customClient(config *rest.Config, gv schema.GroupVersion, add func(*runtime.Scheme) error) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, err
	}
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &gv, "/apis"
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(c)
}

// Info reads the state of the cluster anew.
func (l *Lab) Info() (*kube.Info, error) { return kube.Inspect(l.Name) }

// Node returns one node as it is now.
func (l *Lab) Node(name string) (kube.NodeInfo, error) {
	info, err := l.Info()
	if err != nil {
		return kube.NodeInfo{}, err
	}
	for _, n := range info.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return kube.NodeInfo{}, fmt.Errorf("no node %q", name)
}

// Nodes returns the names of all nodes.
func (l *Lab) Nodes() ([]string, error) {
	info, err := l.Info()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range info.Nodes {
		names = append(names, n.Name)
	}
	return names, nil
}

// Custom returns a request for a resource of api/v2, such as a list of it.
func (l *Lab) Custom(verb, resource string) *rest.Request {
	return l.custom.Verb(verb).Resource(resource)
}

// Slices returns a request for CiliumEndpointSlices.
func (l *Lab) Slices(verb string) *rest.Request {
	return l.alpha.Verb(verb).Resource(v2alpha1.ResourceEndpointSlices)
}

// Tiers returns a request for ClusterNetworkPolicies.
func (l *Lab) Tiers(verb string) *rest.Request {
	return l.tiers.Verb(verb).Resource("clusternetworkpolicies")
}

// Sandbox runs `hawser sandbox COMMAND... --name NAME`.
func (l *Lab) Sandbox(ctx context.Context, args ...string) error {
	_, err := l.run(ctx, append(append([]string{"sandbox"}, args...), "--name", l.Name))
	return err
}

// Exec runs a command on a node and returns what it wrote.
func (l *Lab) Exec(ctx context.Context, node string, argv ...string) (string, error) {
	return l.run(ctx, append([]string{"sandbox", "exec", "--name", l.Name, node, "--"}, argv...))
}

// Kubectl runs kubectl with this input and returns what it wrote.
func (l *Lab) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, l.program, append([]string{"sandbox", "kubectl", "--name", l.Name, "--"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	return output(cmd)
}

func (l *Lab) run(ctx context.Context, args []string) (string, error) {
	return output(exec.CommandContext(ctx, l.program, args...))
}

func output(cmd *exec.Cmd) (string, error) {
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		words := strings.Join(cmd.Args[1:], " ")
		if len(words) > 120 {
			words = words[:120] + "..."
		}
		return out.String(), fmt.Errorf("%s: %w: %s", words, err, strings.TrimSpace(stderr.String()))
	}
	return out.String(), nil
}

// Eventually repeats fn until it succeeds. After the timeout it returns fn's last error.
func Eventually(ctx context.Context, timeout time.Duration, fn func(context.Context) error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := fn(ctx)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("still after %s: %w", timeout, err)
		}
		if !retry.Sleep(ctx, 200*time.Millisecond) {
			return errors.Join(ctx.Err(), err)
		}
	}
}
