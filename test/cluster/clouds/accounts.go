package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/region"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// accounts are what the four that account for addresses have: the cloud, the operator and the
// agents (both in CiliumNodes), and Kubernetes for its pods.
type accounts struct {
	provider string
	cloud    cloud.View
	nodes    []v2.CiliumNode
	pods     []corev1.Pod
}

// entry is an address that the cloud has assigned.
type entry struct {
	of        cloud.Interface
	node      string
	secondary bool
}

// faults are what they do not agree about. Primary addresses are the interface's: some clouds'
// pools have those of interfaces that are for pods alone.
func (acc *accounts) faults() (out []string) {
	fault := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	nodeOf := map[string]string{}
	for _, n := range acc.nodes {
		nodeOf[region.InstanceID(acc.provider, n.Name)] = n.Name
	}
	assigned := map[string]entry{}
	for _, i := range acc.cloud.Interfaces {
		if i.Instance == "" {
			fault("interface %s is attached to no instance", i.ID)
		}
		for k, ip := range append([]netip.Addr{i.Primary}, i.Addresses...) {
			if other, ok := assigned[ip.String()]; ok {
				fault("the cloud has %s on %s and %s", ip, other.of.ID, i.ID)
			}
			assigned[ip.String()] = entry{i, nodeOf[i.Instance], k > 0}
		}
	}
	pooled, used := map[string]string{}, map[string]string{}
	for _, n := range acc.nodes {
		for ip, a := range n.Spec.IPAM.Pool {
			if other, ok := pooled[ip]; ok {
				fault("%s is in the pools of %s and %s", ip, other, n.Name)
			}
			pooled[ip] = n.Name
			switch e, ok := assigned[ip]; {
			case !ok:
				fault("%s is in the pool of %s, and the cloud has assigned it to no machine", ip, n.Name)
			case e.node != n.Name:
				fault("%s is in the pool of %s, and the cloud has it on %s of %q", ip, n.Name, e.of.ID, e.node)
			case !strings.EqualFold(a.Resource, e.of.ID):
				fault("%s of %s is of %s by its pool, and of %s in the cloud", ip, n.Name, a.Resource, e.of.ID)
			}
		}
		for ip, a := range n.Status.IPAM.Used {
			if _, ok := n.Spec.IPAM.Pool[ip]; !ok {
				fault("%s is used by %s of %s, and not in its pool", ip, a.Owner, n.Name)
			}
			used[ip] = n.Name + " " + a.Owner
		}
	}
	for ip, e := range assigned {
		if e.secondary && pooled[ip] == "" {
			fault("the cloud has assigned %s to %s of %q, and it is in no pool", ip, e.of.ID, e.node)
		}
	}
	owners := map[string]bool{}
	has := map[string]string{}
	for i := range acc.pods {
		p := &acc.pods[i]
		if p.Spec.HostNetwork || p.Status.PodIP == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		name := p.Namespace + "/" + p.Name
		if other, ok := has[p.Status.PodIP]; ok {
			fault("%s is the address of %s and %s", p.Status.PodIP, other, name)
		}
		has[p.Status.PodIP] = name
		want := p.Spec.NodeName + " " + name
		owners[want] = true
		if is := used[p.Status.PodIP]; is != want {
			fault("%s is the address of %s, and its node says %q", p.Status.PodIP, want, is)
		}
	}
	for ip, who := range used {
		if strings.Contains(who, "/") && !owners[who] {
			fault("%s is used by %s, which is no pod that runs", ip, who)
		}
	}
	out = append(out, acc.faultsIPv6()...)
	slices.Sort(out)
	return out
}

// read takes the account of all four.
func (c *scene) read(ctx context.Context) (*accounts, error) {
	acc := &accounts{provider: c.provider}
	var list v2.CiliumNodeList
	if err := c.Custom("GET", "ciliumnodes").Do(ctx).Into(&list); err != nil {
		return nil, err
	}
	acc.nodes = list.Items
	pods, err := c.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	acc.pods = pods.Items
	st, err := c.cloud.Status(ctx)
	acc.cloud = st.View
	return acc, err
}

// agree waits until the accounts agree, and sees that no pod of the stage has lost its address.
func (c *scene) agree(ctx context.Context) error {
	var last *accounts
	began := time.Now()
	err := lab.Eventually(ctx, waitTimeout, func(ctx context.Context) (err error) {
		if last, err = c.read(ctx); err != nil {
			return err
		}
		if f := last.faults(); len(f) > 0 {
			if len(f) > 5 {
				f = append(f[:5], fmt.Sprintf("and %d more", len(f)-5))
			}
			return errors.New("accounts of addresses differ: " + strings.Join(f, "; "))
		}
		return nil
	})
	if err != nil {
		return err
	}
	now := map[string]string{}
	for i := range last.pods {
		now[last.pods[i].Namespace+"/"+last.pods[i].Name] = last.pods[i].Status.PodIP
	}
	for name, p := range c.pods {
		if ip := now[name]; ip != p.Object.Status.PodIP && !c.ended[p.Node()] {
			return fmt.Errorf("pod %s had the address %s, and has %q", name, p.Object.Status.PodIP, ip)
		}
	}
	pool, used := 0, 0
	for _, n := range last.nodes {
		pool, used = pool+len(n.Spec.IPAM.Pool), used+len(n.Status.IPAM.Used)
	}
	c.say("  %d addresses in pools, %d in use, on %d interfaces: all agree after %.1f s", pool, used, len(last.cloud.Interfaces), time.Since(began).Seconds())
	return nil
}
