package relevance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/labels"
)

// retry is the pause between two tries of a request that failed.
const retry = time.Second

// Published is the agent's side. Make one with New. Its methods may be called from any goroutine,
// Run once.
type Published struct {
	client          *k8s.Client
	namespace, node string
	log             *slog.Logger
}

// New returns the side of the agent of a node. namespace is that of the operator and the agents.
func New(client *k8s.Client, namespace, node string, log *slog.Logger) (*Published, error) {
	if client == nil || namespace == "" || node == "" {
		return nil, errors.New("labels of identities: a client, a namespace and the node's name are needed")
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Published{client, namespace, node, log}, nil
}

// Narrowed asks until it is known whether the operator has published anything, or ctx ends. An
// agent without the right to know is one of a cluster that never had the option.
func (p *Published) Narrowed(ctx context.Context) (bool, error) {
	narrowed := false
	err := wait.PollUntilContextCancel(ctx, retry, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
		defer cancel()
		_, err := p.client.Urgent.CoreV1().ConfigMaps(p.namespace).Get(ctx, ConfigMapName, metav1.GetOptions{})
		if narrowed = err == nil; narrowed || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return true, nil
		}
		p.log.Debug("cannot find out yet which labels make identities", "error", err)
		return false, nil
	})
	return narrowed, err
}

// Run makes the node known to the operator, and then calls changed with what is published, whenever
// that changes, until ctx ends; then it returns nil. there is false if nothing is: then all labels
// count. So they do in a state of generation 0, which is what cannot be understood, and by which
// nothing may be evaluated. The node is known before the first call, so that the operator never
// goes on without it. Calls do not overlap.
func (p *Published) Run(ctx context.Context, changed func(s State, there bool)) error {
	if err := p.register(ctx); err != nil {
		return nil // ctx has ended
	}
	notified := false
	notify := func(s State, there bool) {
		notified = true
		changed(s, there)
	}
	source := k8s.Kind(p.client.Kube.CoreV1().RESTClient(), "configmaps", p.namespace)
	return k8s.Follow(ctx, source, k8s.Options[*corev1.ConfigMap]{Log: p.log, FieldSelector: "metadata.name=" + ConfigMapName}, k8s.Handler[*corev1.ConfigMap]{
		Upsert: func(o *corev1.ConfigMap) {
			s, err := Read(o)
			if err != nil {
				p.log.Error("the published labels of identities cannot be read; all labels count, and rules that need others wait", "error", err)
			}
			if err != nil {
				s = State{Keys: labels.AllKeys()}
			}
			notify(s, true)
		},
		Delete: func(k8s.Key) { notify(State{}, false) },
		Synced: func() {
			if !notified {
				notify(State{}, false)
			}
		},
	})
}

// register sees to it that the node is known. What an earlier agent of the node has answered still
// holds.
func (p *Published) register(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, retry, true, func(ctx context.Context) (bool, error) {
		err := p.Confirm(ctx, Answer{})
		if err != nil && ctx.Err() == nil {
			p.log.Warn("cannot confirm to the operator that this node uses the labels that make identities; trying again", "error", err)
		}
		return err == nil, nil
	})
}

// Confirm gives the node's answer.
func (p *Published) Confirm(ctx context.Context, a Answer) error {
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	o := a.Lease(p.namespace, p.node)
	if _, err := p.client.Urgent.CoordinationV1().Leases(p.namespace).Create(ctx, o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("answer the operator by Lease %s/%s: %w", p.namespace, o.Name, err)
	}
	return nil
}
