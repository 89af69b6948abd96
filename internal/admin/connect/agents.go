package connect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// agentLabel selects the pods of agents, those of load balancer nodes among them.
	agentLabel     = "k8s-app in (cilium,hawser-balancer)"
	agentContainer = "agent"
	// meshVolume is the volume of agents with the Secret that they follow.
	meshVolume = "clustermesh"
	// lookEvery is the pause between two looks at all agents, lookTimeout what one answer may take.
	lookEvery   = 500 * time.Millisecond
	lookTimeout = 10 * time.Second
)

// agents are the pods of the cluster's agents, including those on nodes that are off, which have a
// condition for that.
func (c *Cluster) agents(ctx context.Context) ([]corev1.Pod, error) {
	list, err := c.client.Kube.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: agentLabel})
	if err != nil {
		return nil, fmt.Errorf("cluster %s: list agents: %w", c.Called, err)
	}
	return list.Items, nil
}

// meshSecret is the Secret that the agents follow: the one that their DaemonSets mount, as all of
// their pods do when a rollout has ended.
func (c *Cluster) meshSecret(ctx context.Context) (string, error) {
	list, err := c.client.Kube.AppsV1().DaemonSets(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: agentLabel})
	if err != nil {
		return "", fmt.Errorf("list DaemonSets of agents: %w", err)
	}
	var names []string
	for _, ds := range list.Items {
		for _, v := range ds.Spec.Template.Spec.Volumes {
			if v.Name == meshVolume && v.Secret != nil {
				names = append(names, v.Secret.SecretName)
			}
		}
	}
	slices.Sort(names)
	switch names = slices.Compact(names); {
	case len(list.Items) == 0:
		return "", fmt.Errorf("there is no DaemonSet of agents in namespace %s (%s)", c.namespace, agentLabel)
	case len(names) == 0:
		return "", fmt.Errorf("DaemonSet %s has no volume %s with a Secret, as the chart makes it: its agents would read no file for another cluster",
			list.Items[0].Name, meshVolume)
	case len(names) > 1:
		return "", fmt.Errorf("agents follow different Secrets (%s): set one clustermesh.secretName for all", strings.Join(names, ", "))
	}
	return names[0], nil
}

// WaitFollows waits until every agent that runs is connected to the cluster of this name, and has
// read all of it. After ctx ends the error names one that is not, and why.
func (c *Cluster) WaitFollows(ctx context.Context, name string) error {
	return c.wait(ctx, fmt.Sprintf("does not follow cluster %s yet", name), func(m rest.ClusterMeshStatus) error {
		for _, r := range m.Clusters {
			switch {
			case r.Name != name:
			case r.Connected && r.Ready:
				return nil
			case r.LastError != "":
				return errors.New(r.LastError)
			default:
				return errors.New(r.Status)
			}
		}
		return errors.New("it does not know it yet")
	})
}

// WaitForgotten waits until no running agent follows the cluster of this name.
func (c *Cluster) WaitForgotten(ctx context.Context, name string) error {
	return c.wait(ctx, fmt.Sprintf("still follows cluster %s", name), func(m rest.ClusterMeshStatus) error {
		for _, r := range m.Clusters {
			if r.Name == name {
				return errors.New("the kubelet has not delivered the Secret to it yet")
			}
		}
		return nil
	})
}

// Followed returns the IDs of the clusters that the agents follow, by name. It waits until an
// agent runs and all that do have answered: those of a cluster that was just started are Ready a
// moment later than its nodes.
func (c *Cluster) Followed(ctx context.Context) (map[string]uint32, error) {
	out := map[string]uint32{}
	var mu sync.Mutex
	err := c.wait(ctx, "does not say yet which clusters it follows", func(m rest.ClusterMeshStatus) error {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range m.Clusters {
			if id := r.Config.ClusterID; id > 0 {
				out[r.Name] = uint32(id)
			}
		}
		return nil
	})
	return out, err
}

func (c *Cluster) wait(ctx context.Context, what string, fine func(rest.ClusterMeshStatus) error) error {
	var last error
	for {
		err := c.each(ctx, fine)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if !retry.Sleep(ctx, lookEvery) {
			return fmt.Errorf("cluster %s %s: %w", c.Called, what, last)
		}
	}
}

// each asks every running agent for its view of other clusters, and joins the results of fine.
func (c *Cluster) each(ctx context.Context, fine func(rest.ClusterMeshStatus) error) error {
	agents, err := c.agents(ctx)
	if err != nil {
		return err
	}
	running := slices.DeleteFunc(agents, func(a corev1.Pod) bool { return !runs(&a) })
	if len(running) == 0 {
		return errors.New("none of its agents runs")
	}
	errs := make([]error, len(running))
	var workers errgroup.Group
	workers.SetLimit(16)
	for i := range running {
		workers.Go(func() error {
			st, err := c.ask(ctx, running[i].Name)
			if err == nil {
				err = fine(st)
			}
			if err != nil {
				errs[i] = fmt.Errorf("agent %s on %s: %w", running[i].Name, running[i].Spec.NodeName, err)
			}
			return nil
		})
	}
	_ = workers.Wait() // errs has them all
	return errors.Join(errs...)
}

// runs reports whether an agent can be asked: one on a node that is off is not Ready, but still
// called Running.
func runs(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
		return false
	}
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

// ask runs the status command in an agent's pod: its API is a socket on the node.
func (c *Cluster) ask(ctx context.Context, pod string) (rest.ClusterMeshStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	req := c.client.Kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(c.namespace).Name(pod).SubResource("exec").VersionedParams(
		&corev1.PodExecOptions{Container: agentContainer, Command: []string{"hawser", "clustermesh", "status", "-o", "json"}, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	config := c.client.RESTConfig()
	ws, err := remotecommand.NewWebSocketExecutor(config, "GET", req.URL().String())
	if err != nil {
		return rest.ClusterMeshStatus{}, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", req.URL())
	if err != nil {
		return rest.ClusterMeshStatus{}, err
	}
	// Servers before 1.30 know only the older way.
	executor, err := remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return rest.ClusterMeshStatus{}, err
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	// The command fails where a cluster is not ready, but prints its status nevertheless.
	var st rest.ClusterMeshStatus
	if jsonErr := json.Unmarshal(stdout.Bytes(), &st); jsonErr != nil {
		return st, errors.Join(err, fmt.Errorf("its command `hawser clustermesh status` prints: %s", strings.TrimSpace(stdout.String()+stderr.String())))
	}
	return st, nil
}
