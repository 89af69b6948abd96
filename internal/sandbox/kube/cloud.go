package kube

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/internal/sandbox/region"
)

// A cluster may be in a cloud of this machine: its nodes are instances of it, its pods have
// addresses that the operator gets by the cloud's API, and the world is the cloud's router. See
// package region.
const (
	cloudName   = "cloud" // the process, the directory below pki, and the ConfigMap
	cloudPort   = 443     // of the world's address
	cloudMount  = "/var/lib/hawser-cloud"
	cloudConfig = "hawser-sandbox-cloud"
)

// cloudPods is the subnet that is for pods.
func cloudPods() netip.Prefix { return netip.MustParsePrefix("10.98.0.0/22") }

func (c *Config) validateCloud() error {
	if c.Cloud == "" {
		if c.InstanceType != "" {
			return errors.New("an instance type is for clusters in a cloud")
		}
		return nil
	}
	if c.Mode != Full || c.CNI != Hawser || c.DualStack || c.ID != 0 || c.Store != "" || c.Manifest != "" {
		return errors.New("a cloud is for clusters with nodes on the network " + Hawser + ", with IPv4 alone, and without a number, a store or a manifest of their own")
	}
	return region.CheckInstanceType(c.Cloud, c.InstanceType)
}

func (c *Cluster) cloudSocket() string { return c.path("cloud.sock") }
func (c *Cluster) cloudSpec() string   { return c.path("cloud.json") }

// Cloud returns a client of the cluster's cloud.
func (c *Cluster) Cloud() (region.Client, error) {
	st, err := c.load()
	if err == nil && st.Cloud == "" {
		err = fmt.Errorf("cluster %q is in no cloud", st.Name)
	}
	return region.Client{Socket: c.cloudSocket()}, err
}

// cloudURL is where the cloud's API is.
func (s *state) cloudURL() string { return fmt.Sprintf("https://%s", s.plan().world().IPv4) }

// writeCloud writes the certificate of the cloud's API, and what the cloud consists of.
func (c *Cluster) writeCloud(st *state) error {
	ca, err := newAuthority("hawser-sandbox-" + st.Name + "-cloud")
	if err != nil {
		return err
	}
	server, err := ca.issue(pkix.Name{CommonName: st.Cloud}, []string{st.Cloud}, st.plan().world().IPv4)
	if err != nil {
		return err
	}
	dir := c.path("pki", cloudName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var errs []error
	for name, data := range map[string][]byte{"ca.crt": ca.pem, "server.crt": server.cert, "server.key": server.key} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	nodes, _ := st.plan().underlay()
	spec := region.Spec{
		Provider: st.Cloud, InstanceType: st.InstanceType, Router: c.netns(worldName), Nodes: nodes, Pods: cloudPods(), Kept: []netip.Addr{st.plan().world().IPv4, st.plan().master().IPv4},
		API: netip.AddrPortFrom(st.plan().world().IPv4, cloudPort), Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key"), Socket: c.cloudSocket(),
	}
	for _, n := range st.Nodes {
		spec.Hosts = append(spec.Hosts, region.Host{Name: n.Name, Namespace: c.netns(n.Name), First: n.Name, IPv4: n.IPv4, MAC: n.hardwareAddr().String()})
	}
	data, err := json.MarshalIndent(spec, "", "  ")
	if err == nil {
		err = os.WriteFile(c.cloudSpec(), data, 0o600)
	}
	return errors.Join(append(errs, err)...)
}

// makeRouter has the world be the cloud's router: it answers for all addresses on all links, so
// that no instance finds another one but through it.
func (c *Cluster) makeRouter() error {
	return machine.InNamespace(c.netns(worldName), func() error {
		var errs []error
		for path, value := range map[string]string{
			"ip_forward": "1", "conf/all/rp_filter": "0", "conf/default/rp_filter": "0", "conf/all/send_redirects": "0", "conf/" + bridgeName + "/proxy_arp": "1",
		} {
			errs = append(errs, os.WriteFile("/proc/sys/net/ipv4/"+path, []byte(value), 0o644))
		}
		return errors.Join(errs...)
	})
}

// cloudServer is the process of the cloud.
func (c *Cluster) cloudServer() program {
	return program{name: cloudName, place: worldName, ready: true, argv: c.self("cloud-serve", "--spec", c.cloudSpec(), "--ready-fd", "3")}
}

// cloudOptions are those of agents and operator in a cloud.
func (s *state) cloudOptions() map[string]string {
	if s.Cloud == "" {
		return nil
	}
	set := map[string]string{"routing-mode": "native", "auto-direct-node-routes": "false"}
	var of map[string]string
	tag := region.PodsTag + "=" + region.PodsValue
	switch s.Cloud {
	case region.AWS:
		of = map[string]string{"ipam": "eni", "eni-first-interface-index": "1", "eni-subnet-tags": tag, "aws-release-excess-ips": "true"}
	case region.Azure:
		of = map[string]string{
			"ipam": "azure", "azure-subscription-id": region.Subscription, "azure-resource-group": region.ResourceGroup,
			"azure-resource-manager-url": s.cloudURL(), "azure-release-excess-ips": "true",
		}
	case region.Alibaba:
		of = map[string]string{
			"ipam": "alibabacloud", "alibabacloud-vswitch-tags": tag, "alibaba-cloud-region-id": region.Region, "alibaba-cloud-endpoint-url": s.cloudURL(),
			"alibaba-cloud-release-excess-ips": "true",
		}
	}
	for k, v := range of {
		set[k] = v
	}
	return set
}

// cloudRule is what the agent may do in a cloud besides: it says which addresses its pods use. The
// chart gives it with ipam.mode, and the checkout's manifest is of another one.
func cloudRule() map[string]any {
	return map[string]any{"apiGroups": []any{"cilium.io"}, "resources": []any{"ciliumnodes/status"}, "verbs": []any{"patch"}}
}

// cloudOperator gives the operator credentials, and the authority of the cloud's certificate.
func (s *state) cloudOperator(spec map[string]any) {
	env := map[string]string{"SSL_CERT_FILE": cloudMount + "/ca.crt"}
	switch s.Cloud {
	case region.AWS:
		env["AWS_ENDPOINT_URL"], env["AWS_REGION"], env["AWS_EC2_METADATA_DISABLED"] = s.cloudURL(), region.Region, "true"
		env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"] = "sandbox", "sandbox"
	case region.Alibaba:
		env["ALIBABA_CLOUD_ACCESS_KEY_ID"], env["ALIBABA_CLOUD_ACCESS_KEY_SECRET"] = "sandbox", "sandbox"
	}
	for _, c := range spec["containers"].([]any) {
		container := c.(map[string]any)
		list, _ := container["env"].([]any)
		for k, v := range env {
			list = append(list, map[string]any{"name": k, "value": v})
		}
		container["env"] = list
		mounts, _ := container["volumeMounts"].([]any)
		container["volumeMounts"] = append(mounts, map[string]any{"name": cloudName, "mountPath": cloudMount, "readOnly": true})
	}
	volumes, _ := spec["volumes"].([]any)
	spec["volumes"] = append(volumes, map[string]any{"name": cloudName, "configMap": map[string]any{"name": cloudConfig}})
}

// deployCloud makes the authority of the cloud's certificate known to the cluster.
func (c *Cluster) deployCloud(ctx context.Context, st *state) error {
	ca, err := os.ReadFile(c.path("pki", cloudName, "ca.crt"))
	if err != nil {
		return err
	}
	doc, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": cloudConfig, "namespace": "kube-system"}, "data": map[string]string{"ca.crt": string(ca)},
	})
	if err != nil {
		return err
	}
	return c.apply(ctx, st, doc)
}
