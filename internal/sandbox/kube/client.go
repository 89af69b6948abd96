package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// client speaks to the API server as the cluster's administrator, through the loopback like the
// user does. It knows no types: a cluster asks for few things.
type client struct {
	base string
	http *http.Client
}

// statusError is an answer that is not a success.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return fmt.Sprintf("API server: %d: %s", e.code, e.message) }

func (c *Cluster) client(port int) (*client, error) {
	ca, err := os.ReadFile(c.path("pki", "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("ca.crt holds no certificate")
	}
	cert, err := tls.LoadX509KeyPair(c.path("pki", "user.crt"), c.path("pki", "user.key"))
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true}
	return &client{base: loopbackURL(port), http: &http.Client{Transport: tr, Timeout: 10 * time.Second}}, nil
}

func loopbackURL(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

// do sends body, if there is one, and reads the answer into out, if there is one.
func (c *client) do(ctx context.Context, method, path, contentType string, body, out any) error {
	var r io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, r)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		var said struct{ Message string }
		if json.Unmarshal(data, &said) != nil || said.Message == "" {
			said.Message = string(data)
		}
		return &statusError{code: resp.StatusCode, message: said.Message}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

func (c *client) ready(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, "/readyz", "", nil, nil)
}

// nodeObject is what is read of a Node.
type nodeObject struct {
	Metadata struct{ Name string }
	Spec     struct{ PodCIDRs []string }
	Status   struct {
		Conditions []struct {
			Type, Status, Reason, Message string
			LastHeartbeatTime             time.Time
		}
		NodeInfo struct{ KubeletVersion, ContainerRuntimeVersion string }
	}
}

// ready returns whether the node is Ready, and what it says about it. What it said before since
// does not count: it may have been off in between.
func (n *nodeObject) ready(since time.Time) (bool, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && !c.LastHeartbeatTime.Before(since.Truncate(time.Second)) {
			return c.Status == "True", c.Reason + ": " + c.Message
		}
	}
	return false, "the kubelet has said nothing yet"
}

// renewed returns when the node's kubelet last said that it is alive, to the microsecond; its
// heartbeats have whole seconds only.
func (c *client) renewed(ctx context.Context, node string) (time.Time, error) {
	var lease struct{ Spec struct{ RenewTime time.Time } }
	err := c.do(ctx, http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"+node, "", nil, &lease)
	return lease.Spec.RenewTime, err
}

func (c *client) nodes(ctx context.Context) ([]nodeObject, error) {
	var list struct{ Items []nodeObject }
	err := c.do(ctx, http.MethodGet, "/api/v1/nodes", "", nil, &list)
	return list.Items, err
}

// ensureNode makes the object of a node with its range of pods. Whichever is first, this or the
// kubelet, the ranges are those of the plan.
func (c *client) ensureNode(ctx context.Context, n *node) error {
	spec := map[string]any{"podCIDR": n.podCIDRs()[0], "podCIDRs": n.podCIDRs()}
	object := map[string]any{
		"apiVersion": "v1", "kind": "Node", "spec": spec,
		"metadata": map[string]any{"name": n.Name, "labels": map[string]string{"kubernetes.io/hostname": n.Name, "kubernetes.io/os": "linux"}},
	}
	spec["taints"] = []map[string]string{{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}}
	err := c.do(ctx, http.MethodPost, "/api/v1/nodes", "application/json", object, nil)
	var status *statusError
	if !errors.As(err, &status) || status.code != http.StatusConflict {
		return err
	}
	delete(spec, "taints")
	return c.do(ctx, http.MethodPatch, "/api/v1/nodes/"+n.Name, "application/merge-patch+json", map[string]any{"spec": spec}, nil)
}
