package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/test/cluster/lab"
	"github.com/hawser-net/hawser/test/cluster/matrix"
	"github.com/hawser-net/hawser/test/cluster/world"
)

// change is one change that a user makes to the cluster.
type change struct {
	kind, what string
	// policies are those in force afterwards; nil if they stay.
	policies []world.Object
	// concerns reports whether a party may be evaluated differently at any time until all has
	// settled, besides by policies; nil for none.
	concerns func(*matrix.Party) bool
	make     func(context.Context) error
	// undo is done after the disturbance, if not nil.
	undo func(context.Context) error
}

func (c change) String() string { return c.what }

// none changes nothing: nothing may change either.
func none() change {
	return change{kind: "nothing", what: "nothing changes", make: func(context.Context) error { return nil }}
}

// choose returns what to do next. Without an API server nothing can change.
func (s *soak) choose(ctx context.Context) (disturbance, change, error) {
	d, err := s.disturbance(ctx)
	if err != nil || d.noAPI {
		return d, none(), err
	}
	var c change
	switch n := s.rng.IntN(100); {
	case n < 22:
		c = s.addPolicy()
	case n < 36:
		c = s.dropPolicy()
	case n < 54:
		c = s.relabelPod()
	case n < 64:
		c, err = s.relabelNamespace(ctx)
	case n < 80:
		c = s.replacePod()
	case d.noStore && n < 92:
		c = none() // there is nothing to edit
	case n < 86:
		c, err = s.editIdentity(ctx)
	case n < 92:
		c, err = s.deleteIdentity(ctx)
	case n < 96 && s.cluster.Endpoints != "slim":
		c = s.deleteEndpoint()
	default:
		c = none()
	}
	return d, c, err
}

func (s *soak) addPolicy() change {
	if len(s.Policies) >= maxPolicies {
		return s.dropPolicy()
	}
	o := world.Random(s.gen, "new")
	return change{
		kind: "add-policy", what: "a policy is added", policies: append(slices.Clone(s.Policies), o),
		make: func(ctx context.Context) error { _, err := s.Add(ctx, o); return err },
	}
}

func (s *soak) dropPolicy() change {
	if len(s.Policies) == 0 {
		return s.addPolicy()
	}
	i := s.rng.IntN(len(s.Policies))
	return change{
		kind: "drop-policy", what: "policy " + s.Policies[i].Meta().Name + " is removed",
		// Not nil, even without any left.
		policies: append(append([]world.Object{}, s.Policies[:i]...), s.Policies[i+1:]...),
		make:     func(ctx context.Context) error { return s.Drop(ctx, i) },
	}
}

// pod returns a pod by random.
func (s *soak) pod() *lab.Pod {
	names := slices.Sorted(maps.Keys(s.Pods))
	return s.Pods[names[s.rng.IntN(len(names))]]
}

func (s *soak) relabelPod() change {
	p, set := s.pod(), world.RandomLabels(s.rng)
	merge := map[string]any{"app": nil, "tier": nil}
	for k, v := range set {
		merge[k] = v
	}
	return change{
		kind: "relabel-pod", what: fmt.Sprintf("pod %s gets the labels %v", p.Name(), set),
		concerns: func(q *matrix.Party) bool {
			return q.Labels != nil && (q.Name == p.Name() || q.Labels.Equal(p.Labels) || appOf(q.Labels, set))
		},
		make: func(ctx context.Context) error { return s.patchLabels(ctx, p, merge) },
	}
}

func value(set labels.Set, key string) string {
	for _, l := range set {
		if l.Source == labels.SourceK8s && l.Key == key {
			return l.Value
		}
	}
	return ""
}

func (s *soak) patchLabels(ctx context.Context, p *lab.Pod, merge map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": merge}})
	if err != nil {
		return err
	}
	_, err = s.Kube.CoreV1().Pods(p.Object.Namespace).Patch(ctx, p.Object.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (s *soak) relabelNamespace(ctx context.Context) (change, error) {
	name := s.Spaces[s.rng.IntN(len(s.Spaces))]
	set := world.RandomNamespaceLabels(s.rng)
	merge := map[string]any{"team": nil}
	for k, v := range set {
		merge[k] = v
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": merge}})
	return change{
		kind: "relabel-namespace", what: fmt.Sprintf("namespace %s gets the labels %v", name, set),
		concerns: func(q *matrix.Party) bool { p := s.Pods[q.Name]; return p != nil && p.Object.Namespace == name },
		make: func(ctx context.Context) error {
			_, err := s.Kube.CoreV1().Namespaces().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, err
}

// replacePod removes a pod without grace and makes another one, which may get its address.
func (s *soak) replacePod() change {
	old := s.pod()
	var next *corev1.Pod
	return change{
		kind: "replace-pod", what: fmt.Sprintf("pod %s goes, another one comes", old.Name()),
		concerns: func(q *matrix.Party) bool {
			return q.Name == old.Name() || q.Labels != nil && next != nil && (q.Labels.Equal(old.Labels) || appOf(q.Labels, next.Labels))
		},
		make: func(ctx context.Context) error {
			zero := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
			err := s.Kube.CoreV1().Pods(old.Object.Namespace).Delete(ctx, old.Object.Name, zero)
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			_, err = s.Kube.CoreV1().Pods(next.Namespace).Create(ctx, next, metav1.CreateOptions{})
			return err
		},
		undo: func(ctx context.Context) error { return s.WaitReady(ctx, convergence, next) },
	}.with(func() error {
		info, err := s.Info()
		if err != nil {
			return err
		}
		next = s.RandomPod(s.rng, fmt.Sprintf("pod-%d", s.pods), info.Nodes)
		s.pods++
		return nil
	})
}

// with prepares a change now, so that its random choices are made in the order of steps.
func (c change) with(prepare func() error) change {
	if err := prepare(); err != nil {
		c.make = func(context.Context) error { return err }
	}
	return c
}

// appOf reports whether a pod with these labels may have the identity: the names of its ports then
// mean those of all.
func appOf(set labels.Set, podLabels map[string]string) bool {
	return value(set, "app") == podLabels["app"] && value(set, "tier") == podLabels["tier"]
}

// deleteEndpoint removes a pod's CiliumEndpoint by hand: other nodes forget the pod until it is
// back.
func (s *soak) deleteEndpoint() change {
	p := s.pod()
	return change{
		kind: "delete-endpoint", what: fmt.Sprintf("the CiliumEndpoint of %s is deleted by hand", p.Name()),
		concerns: func(q *matrix.Party) bool { return q.Labels.Equal(p.Labels) },
		make: func(ctx context.Context) error {
			return s.Custom("DELETE", v2.ResourceEndpoints).Namespace(p.Object.Namespace).Name(p.Object.Name).Do(ctx).Error()
		},
	}
}

// seconds returns a random time.
func (s *soak) seconds(from, to int) time.Duration {
	return time.Duration(from+s.rng.IntN(to-from+1)) * time.Second
}
