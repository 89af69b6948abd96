package connect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/validate"
)

const (
	// AccessSecret is the Secret of a cluster with the access for other clusters' agents to its
	// store: endpoints (URLs, with commas between), ca.crt, tls.crt and tls.key.
	AccessSecret = "clustermesh-remote-access"
	// MeshSecret is the Secret that the agents of a cluster follow, with a file for each other
	// cluster, unless their pods mount another one.
	MeshSecret = "cilium-clustermesh"

	configMap = "cilium-config"
	// defaultMax is the default maximum of clusters.
	defaultMax = 255
)

// Cluster is a cluster with Hawser as its network, known by its API server.
type Cluster struct {
	// Called is what the user calls it: a name or a context.
	Called    string
	client    *k8s.Client
	namespace string
}

// New returns a cluster whose agents run in this namespace. It makes no request.
func New(called string, client *k8s.Client, namespace string) *Cluster {
	return &Cluster{Called: called, client: client, namespace: namespace}
}

// Access is how agents of other clusters read a cluster's store. The three others are PEM.
type Access struct {
	Endpoints     []string
	CA, Cert, Key []byte
}

// Facts is a cluster's description of itself.
type Facts struct {
	Name string
	// ID is the cluster's ID, Max the largest that there can be.
	ID, Max uint32
	// Pods are the ranges of pods by node, Nodes the nodes' addresses.
	Pods  map[string][]netip.Prefix
	Nodes map[string][]netip.Addr
	// Dir is where agents find the files of the Secret that they follow.
	Dir    string
	Access Access
}

// Read reads the cluster's description of itself. An error names what it lacks to be connected.
func (c *Cluster) Read(ctx context.Context) (Facts, error) {
	f, err := c.read(ctx)
	if err != nil {
		return Facts{}, fmt.Errorf("cluster %s: %w", c.Called, err)
	}
	return f, nil
}

// Name is how the cluster calls itself.
func (c *Cluster) Name(ctx context.Context) (string, error) {
	options, err := c.options(ctx)
	if err == nil && options["cluster-name"] == "" {
		err = fmt.Errorf("ConfigMap %s does not name it", configMap)
	}
	if err != nil {
		return "", fmt.Errorf("cluster %s: %w", c.Called, err)
	}
	return options["cluster-name"], nil
}

// options are those of the agents.
func (c *Cluster) options(ctx context.Context) (map[string]string, error) {
	config, err := c.client.Kube.CoreV1().ConfigMaps(c.namespace).Get(ctx, configMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no ConfigMap %s/%s: Hawser is not installed in it, or in another namespace", c.namespace, configMap)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the API server at %s: %w", c.client.Host(), err)
	}
	return config.Data, nil
}

func (c *Cluster) read(ctx context.Context) (Facts, error) {
	options, err := c.options(ctx)
	if err != nil {
		return Facts{}, err
	}
	f, err := readConfig(options)
	if err != nil {
		return Facts{}, err
	}
	if f.Access, err = c.access(ctx); err != nil {
		return Facts{}, err
	}
	if _, err := c.meshSecret(ctx); err != nil {
		return Facts{}, err
	}
	f.Pods, f.Nodes = map[string][]netip.Prefix{}, map[string][]netip.Addr{}
	var list v2.CiliumNodeList
	if err := c.client.V2.Get().Resource(v2.ResourceNodes).Do(ctx).Into(&list); err != nil {
		return Facts{}, fmt.Errorf("list CiliumNodes: %w", err)
	}
	for i := range list.Items {
		n, err := nodes.Read(&list.Items[i], f.Name, f.ID)
		if err != nil {
			return Facts{}, fmt.Errorf("CiliumNode %s: %w", list.Items[i].Name, err)
		}
		f.Pods[n.Name], f.Nodes[n.Name] = n.PodCIDRs(), n.NodeIPs()
	}
	return f, nil
}

// readConfig reads the options of the agents.
func readConfig(data map[string]string) (Facts, error) {
	f := Facts{Name: data["cluster-name"], Max: defaultMax, Dir: data["clustermesh-config"]}
	id, err := strconv.ParseUint(data["cluster-id"], 10, 32)
	if text := data["max-connected-clusters"]; err == nil && text != "" {
		var most uint64
		most, err = strconv.ParseUint(text, 10, 32)
		f.Max = uint32(most)
	}
	if err != nil {
		return Facts{}, fmt.Errorf("ConfigMap %s: %w", configMap, err)
	}
	f.ID = uint32(id)
	switch {
	case f.Name == "":
		return Facts{}, errors.New("it has no name: set cluster.name of the chart")
	case f.ID == 0:
		return Facts{}, errors.New("it has no ID, so it cannot be connected: a sandbox gets one by `hawser sandbox up --kubernetes --cluster-id N`, " +
			"another cluster by cluster.id of the chart, before there are pods")
	case f.Dir == "":
		return Facts{}, errors.New("its agents follow no other clusters: set --clustermesh-config, as the chart does where cluster.id is set")
	}
	return f, nil
}

func (c *Cluster) access(ctx context.Context) (Access, error) {
	s, err := c.client.Kube.CoreV1().Secrets(c.namespace).Get(ctx, AccessSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Access{}, fmt.Errorf("there is no Secret %s/%s, which lets other clusters read its store; see docs/user/clustermesh.md", c.namespace, AccessSecret)
	}
	if err != nil {
		return Access{}, fmt.Errorf("read Secret %s: %w", AccessSecret, err)
	}
	return readAccess(s)
}

func readAccess(s *corev1.Secret) (Access, error) {
	a := Access{CA: s.Data["ca.crt"], Cert: s.Data["tls.crt"], Key: s.Data["tls.key"]}
	for e := range strings.SplitSeq(string(s.Data["endpoints"]), ",") {
		if e = strings.TrimSpace(e); e != "" {
			a.Endpoints = append(a.Endpoints, e)
		}
	}
	if len(a.Endpoints) == 0 {
		return Access{}, fmt.Errorf("the Secret %s names no endpoints", AccessSecret)
	}
	if (len(a.Cert) == 0) != (len(a.Key) == 0) {
		return Access{}, fmt.Errorf("the Secret %s has one of tls.crt and tls.key without the other", AccessSecret)
	}
	return a, nil
}

// Clash returns why two clusters cannot be connected, all reasons at once; nil if they can.
func Clash(a, b Facts) error {
	var errs validate.Errors
	errs.If(a.Name == b.Name, "both clusters have the name %s: one of the two needs another --cluster-name", a.Name)
	errs.If(a.ID == b.ID, "both clusters have the ID %d: one of the two needs another --cluster-id", a.ID)
	errs.If(a.Max != b.Max, "cluster %s allows up to %d clusters and %s up to %d: --max-connected-clusters must be the same in both", a.Name, a.Max, b.Name, b.Max)
	return errors.Join(append(errs, overlaps(a, b))...)
}

// overlaps names one pair of ranges or addresses that both clusters have.
func overlaps(a, b Facts) error {
	for nodeA, rangesA := range a.Pods {
		for _, p := range rangesA {
			for nodeB, rangesB := range b.Pods {
				for _, q := range rangesB {
					if p.Overlaps(q) {
						return fmt.Errorf("pods of %s/%s are in %s and those of %s/%s in %s, which overlap: one of the two clusters needs other ranges of pods",
							a.Name, nodeA, p, b.Name, nodeB, q)
					}
				}
			}
			if err := inside(p, a.Name+"/"+nodeA, b); err != nil {
				return err
			}
		}
	}
	for nodeB, rangesB := range b.Pods {
		for _, q := range rangesB {
			if err := inside(q, b.Name+"/"+nodeB, a); err != nil {
				return err
			}
		}
	}
	for nodeA, addrs := range a.Nodes {
		for _, x := range addrs {
			if err := inside(netip.PrefixFrom(x, x.BitLen()), "", b); err != nil {
				return fmt.Errorf("node %s/%s: %w", a.Name, nodeA, err)
			}
		}
	}
	return nil
}

// inside names the node, if any, that has an address in a range of another owner.
func inside(p netip.Prefix, whose string, f Facts) error {
	for name, addrs := range f.Nodes {
		for _, x := range addrs {
			if !p.Contains(x) {
				continue
			}
			if whose == "" {
				return fmt.Errorf("node %s/%s has the same address %s", f.Name, name, x)
			}
			return fmt.Errorf("pods of %s are in %s, where node %s/%s has its address %s", whose, p, f.Name, name, x)
		}
	}
	return nil
}
