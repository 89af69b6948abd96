package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/sandbox/region"
	"github.com/hawser-net/hawser/pkg/retry"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// step is one thing to try. After each the accounts of addresses must agree.
type step struct {
	name, about string
	long        bool
	run         func(*scene, context.Context) error
}

// steps are in the order in which they must run.
func steps() []step {
	return []step{
		{"reach", "pods of several interfaces, services and the world reach each other by policy", false, (*scene).reach},
		{"metadata", "pods do not reach the instance metadata service, nodes do", false, (*scene).metadata},
		{"burst", "many pods at once, and operators killed meanwhile", false, (*scene).scale},
		{"dry", "the subnet runs dry under many pods, and is widened", false, (*scene).dry},
		{"throttle", "the cloud answers one request in two seconds for a minute", true, (*scene).throttle},
		{"rush", "as many pods at once as are many times what nodes have in advance", true, (*scene).rush},
		{"again", "pods reach each other after all of this as before", false, (*scene).reach},
		{"terminate", "an instance ends", true, (*scene).terminate},
	}
}

func (c *scene) reach(ctx context.Context) error {
	l, err := c.read(ctx)
	if err != nil {
		return err
	}
	for _, n := range l.nodes {
		on := map[string]int{}
		for _, name := range c.names {
			if p := c.pods[name]; p.Node() == n.Name {
				on[n.Spec.IPAM.Pool[p.Addrs[0].String()].Resource]++
			}
		}
		// Azure's instances have the interfaces that they were made with.
		if len(on) < 2 && c.provider != region.Azure {
			return fmt.Errorf("the pods of %s are all on %v: nothing is tried of several interfaces", n.Name, on)
		}
		c.say("  %s: pods by interface %v", n.Name, on)
	}
	probes := c.everyone()
	began := time.Now()
	err = c.ask(probes)
	c.say("  %d probes by TCP and UDP in %.1f s", 2*len(probes), time.Since(began).Seconds())
	return err
}

func (c *scene) metadata(context.Context) error {
	spec := region.Spec{Provider: c.provider}
	at := netip.AddrPortFrom(spec.MetadataAddr(), 80)
	for _, name := range c.names {
		conn, err := c.pods[name].Namespace.Dial("tcp", at, 5*time.Second)
		if err == nil {
			lab.Reset(conn)
			return fmt.Errorf("pod %s reaches %s, which gives the credentials of the machine to any client", name, at)
		}
		// Silence could have any cause.
		if !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("pod %s is not refused at once by %s: %w", name, at, err)
		}
	}
	for _, n := range c.nodes {
		info, err := c.Node(n)
		if err != nil {
			return err
		}
		ns, err := lab.OpenNamespace(info.Netns)
		if err != nil {
			return err
		}
		conn, err := ns.Dial("tcp", at, 5*time.Second)
		if err == nil {
			lab.Reset(conn)
		}
		ns.Close()
		if err != nil {
			return fmt.Errorf("node %s does not reach %s: %w", n, at, err)
		}
	}
	c.say("  %d pods are refused, %d nodes do", len(c.names), len(c.nodes))
	return nil
}

// many makes the crowd and returns its pods, without waiting for them.
func (c *scene) many(ctx context.Context) (pods []*corev1.Pod, err error) {
	for k := range c.burst {
		p := lab.Pause(crowd, fmt.Sprintf("p%d", k), c.nodes[k%len(c.nodes)], nil)
		if _, err := c.Kube.CoreV1().Pods(crowd).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// few removes the crowd of n pods, and waits until the cloud has back what is superfluous: a node
// keeps 8 addresses that are free.
func (c *scene) few(ctx context.Context, n int) error {
	before, err := c.read(ctx)
	if err != nil {
		return err
	}
	zero := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := c.Kube.CoreV1().Pods(crowd).DeleteCollection(ctx, zero, metav1.ListOptions{}); err != nil {
		return err
	}
	began := time.Now()
	was := 0
	for _, n := range before.nodes {
		was += len(n.Spec.IPAM.Pool)
	}
	// Each pod is a few processes to end.
	return lab.Eventually(ctx, max(waitTimeout, time.Duration(n)*2*time.Second), func(ctx context.Context) error {
		l, err := c.read(ctx)
		if err != nil {
			return err
		}
		now := 0
		for _, n := range l.nodes {
			for _, a := range n.Status.IPAM.Used {
				if strings.HasPrefix(a.Owner, crowd+"/") {
					return fmt.Errorf("node %s has an address of %s still", n.Name, a.Owner)
				}
			}
			if now += len(n.Spec.IPAM.Pool); len(n.Spec.IPAM.Pool)-len(n.Status.IPAM.Used) > 8 {
				return fmt.Errorf("node %s has %d addresses, and uses %d", n.Name, len(n.Spec.IPAM.Pool), len(n.Status.IPAM.Used))
			}
		}
		c.say("  %d addresses became %d within %.1f s of the end of %d pods", was, now, time.Since(began).Seconds(), n)
		return nil
	})
}

func (c *scene) scale(ctx context.Context) error {
	return c.traffic(ctx, func() error {
		pods, err := c.many(ctx)
		if err != nil {
			return err
		}
		began, killed := time.Now(), 0
		for range 3 {
			for _, n := range c.nodes {
				out, err := c.Exec(ctx, n, "sh", "-c", "if pkill -KILL -x hawser-operator; then echo killed; else test $? = 1; fi")
				if err != nil {
					return err
				}
				killed += strings.Count(out, "killed")
			}
			if !retry.Sleep(ctx, 2*time.Second) {
				return ctx.Err()
			}
		}
		if err := c.WaitReady(ctx, 2*waitTimeout, pods...); err != nil {
			return err
		}
		if killed < 2 {
			return fmt.Errorf("%d operators were killed", killed)
		}
		c.say("  %d pods at once are ready after %.1f s; %d operators were killed in the first 6", len(pods), time.Since(began).Seconds(), killed)
		if err := c.agree(ctx); err != nil {
			return err
		}
		return c.few(ctx, c.burst)
	})
}

// complaints are what the operator says about nodes.
func (c *scene) complaints(ctx context.Context) (out []string, err error) {
	var list v2.CiliumNodeList
	if err := c.Custom("GET", "ciliumnodes").Do(ctx).Into(&list); err != nil {
		return nil, err
	}
	for _, n := range list.Items {
		if text := n.Status.IPAM.OperatorStatus.Error; text != "" {
			out = append(out, text)
		}
	}
	return out, nil
}

func (c *scene) dry(ctx context.Context) error {
	return c.traffic(ctx, func() error {
		if _, err := c.cloud.Order(ctx, region.Order{Do: "fill", Free: 3}); err != nil {
			return err
		}
		pods, err := c.many(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		err = lab.Eventually(ctx, waitTimeout, func(ctx context.Context) error {
			said, err := c.complaints(ctx)
			if err == nil && !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "no free address in subnet") }) {
				err = fmt.Errorf("the operator does not say that the subnet is dry, but %q", said)
			}
			return err
		})
		c.say("  the operator says so after %.1f s", time.Since(began).Seconds())
		began = time.Now()
		if _, calm := c.cloud.Order(ctx, region.Order{Do: "calm"}); calm != nil || err != nil {
			return errors.Join(err, calm)
		}
		if err := c.WaitReady(ctx, 2*waitTimeout, pods...); err != nil {
			return err
		}
		c.say("  %d pods are ready %.1f s after it was widened", len(pods), time.Since(began).Seconds())
		if err := c.agree(ctx); err != nil {
			return err
		}
		return c.few(ctx, c.burst)
	})
}

func (c *scene) throttle(ctx context.Context) error {
	return c.traffic(ctx, func() error {
		if _, err := c.cloud.Order(ctx, region.Order{Do: "throttle", Rate: 0.5}); err != nil {
			return err
		}
		began := time.Now()
		pods, err := c.many(ctx)
		if err != nil {
			return err
		}
		retry.Sleep(ctx, time.Minute)
		ready := 0
		list, err := c.Kube.CoreV1().Pods(crowd).List(ctx, metav1.ListOptions{})
		if err == nil {
			for i := range list.Items {
				if lab.Ready(&list.Items[i]) {
					ready++
				}
			}
		}
		if _, calm := c.cloud.Order(ctx, region.Order{Do: "calm"}); calm != nil || err != nil {
			return errors.Join(err, calm)
		}
		if err := c.WaitReady(ctx, 2*waitTimeout, pods...); err != nil {
			return err
		}
		c.say("  %d of %d pods ready in a minute of it, all after %.1f s", ready, len(pods), time.Since(began).Seconds())
		if err := c.agree(ctx); err != nil {
			return err
		}
		return c.few(ctx, c.burst)
	})
}

// terminate ends the last node's instance, and removes its Node, as a cloud's controller does.
func (c *scene) terminate(ctx context.Context) error {
	node := c.nodes[len(c.nodes)-1]
	if _, err := c.cloud.Order(ctx, region.Order{Do: "terminate", Instance: region.InstanceID(c.provider, node)}); err != nil {
		return err
	}
	c.ended[node] = true
	if err := c.Kube.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}); err != nil {
		return err
	}
	began := time.Now()
	err := lab.Eventually(ctx, waitTimeout, func(ctx context.Context) error {
		// The garbage collector of pods does the same after some time.
		list, err := c.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			zero := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
			if err := c.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, zero); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		l, err := c.read(ctx)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(l.nodes, func(n v2.CiliumNode) bool { return n.Name == node }) {
			return fmt.Errorf("CiliumNode %s is still there", node)
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.say("  its CiliumNode is gone after %.1f s", time.Since(began).Seconds())
	return c.ask(c.everyone())
}
