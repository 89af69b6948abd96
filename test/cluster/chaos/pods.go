package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/test/cluster/invariant"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// extras is a pod of the stage on every node, with labels of their own.
func (d *day) extras(role string) (out []*corev1.Pod) {
	for _, n := range d.nodes {
		out = append(out, lab.Pause(stage, role+"-"+n.Name, n.Name, map[string]string{"role": role, "number": n.Name}))
	}
	return out
}

// forceDelete removes pods from the API before their node has stopped them, and makes others with
// the same names at once: two pods of one name are on their way, and what belongs to which is known
// by their UIDs only.
func forceDelete(ctx context.Context, d *day) error {
	pods := d.extras("forced")
	if err := d.CreatePods(ctx, time.Minute, pods...); err != nil {
		return err
	}
	const rounds = 5
	began := time.Now()
	for round := range rounds {
		for i, n := range d.nodes {
			err := d.Kube.CoreV1().Pods(stage).Delete(ctx, pods[i].Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
			if err != nil {
				return err
			}
			// Other labels each time: the identity of the one before would be wrong.
			next := lab.Pause(stage, pods[i].Name, n.Name, map[string]string{"role": "forced", "number": n.Name, "round": fmt.Sprint(round)})
			err = lab.Eventually(ctx, 20*time.Second, func(ctx context.Context) error {
				_, err := d.Kube.CoreV1().Pods(stage).Create(ctx, next, metav1.CreateOptions{})
				return err
			})
			if err != nil {
				return err
			}
		}
		if round%2 == 1 { // and now and then the next comes before this one has begun
			continue
		}
		if err := d.WaitReady(ctx, 2*time.Minute, pods...); err != nil {
			return err
		}
	}
	if err := d.WaitReady(ctx, 2*time.Minute, pods...); err != nil {
		return err
	}
	if err := invariant.Hold(ctx, d.Lab, 2*time.Minute); err != nil {
		return err
	}
	d.note("%d pods replaced under their names %d times in %.1f s", len(pods), rounds, time.Since(began).Seconds())
	return d.deletePods(ctx, pods)
}

// bulkNamespaces makes namespaces with pods and policies and deletes them all at once.
func bulkNamespaces(ctx context.Context, d *day) error {
	const namespaces = 15
	var names []string
	var pods []*corev1.Pod
	for i := range namespaces {
		name := fmt.Sprintf("bad-days-bulk-%d", i)
		names = append(names, name)
		for _, n := range d.nodes {
			pods = append(pods, lab.Pause(name, "bulk-"+n.Name, n.Name, map[string]string{"role": "bulk"}))
		}
	}
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for _, name := range names {
		g.Go(func() error {
			if err := d.EnsureNamespace(gctx, name, map[string]string{"bulk": "yes"}); err != nil {
				return err
			}
			_, err := d.Kubectl(gctx, fmt.Sprintf(bulkPolicy, name), "apply", "-f", "-")
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := d.CreatePods(ctx, 4*time.Minute, pods...); err != nil {
		return err
	}
	if err := invariant.Hold(ctx, d.Lab, 2*time.Minute); err != nil {
		return err
	}
	d.note("%d namespaces with %d pods are there after %.1f s", namespaces, len(pods), time.Since(began).Seconds())
	began = time.Now()
	if err := d.DeleteNamespaces(ctx, names...); err != nil {
		return err
	}
	d.note("they are gone %.1f s later", time.Since(began).Seconds())
	return nil
}

const bulkPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: bulk, namespace: %[1]s}
spec:
  podSelector: {}
  ingress: [{from: [{namespaceSelector: {matchLabels: {bulk: "yes"}}}]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: bulk, namespace: %[1]s}
spec:
  endpointSelector: {matchLabels: {role: bulk}}
  egress: [{toEndpoints: [{}], toPorts: [{ports: [{port: "53", protocol: UDP}]}]}]
`

// fullNode is how many pods a node takes.
const fullNode = 250

// density fills a node with pods at once, and empties it at once.
func density(ctx context.Context, d *day) error {
	node := d.nodes[0].Name
	there, err := d.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	const namespace = "bad-days-dense"
	if err := d.EnsureNamespace(ctx, namespace, nil); err != nil {
		return err
	}
	var pods []*corev1.Pod
	for i := range fullNode - len(there.Items) {
		// Every fifth has labels of its own.
		pods = append(pods, lab.Pause(namespace, fmt.Sprintf("dense-%d", i), node, map[string]string{"role": "dense", "group": fmt.Sprint(i / 5)}))
	}
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(20)
	for _, p := range pods {
		g.Go(func() error {
			_, err := d.Kube.CoreV1().Pods(namespace).Create(gctx, p, metav1.CreateOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := d.WaitReady(ctx, 10*time.Minute, pods...); err != nil {
		return err
	}
	d.note("%d pods made at once on %s, which has %d then: ready after %.1f s", len(pods), node, fullNode, time.Since(began).Seconds())
	if err := invariant.Hold(ctx, d.Lab, 2*time.Minute); err != nil {
		return err
	}
	began = time.Now()
	zero := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := d.Kube.CoreV1().Pods(namespace).DeleteCollection(ctx, zero, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err := invariant.Hold(ctx, d.Lab, 10*time.Minute); err != nil {
		return err
	}
	d.note("all deleted at once: nothing is left of them after %.1f s", time.Since(began).Seconds())
	return d.DeleteNamespaces(ctx, namespace)
}
