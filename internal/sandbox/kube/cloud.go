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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/fabric"
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

// cloudIPv6 is the IPv6 CIDR block of a cloud with IPv6: that of the nodes' subnet, which a cluster
// without a number has, and that of the pods' subnet.
func cloudIPv6() (all, nodes, pods netip.Prefix) {
	return netip.MustParsePrefix("fd00:99::/56"), netip.MustParsePrefix("fd00:99::/64"), netip.MustParsePrefix("fd00:99:0:98::/64")
}

func (c *Config) validateCloud() error {
	if c.Cloud == "" {
		if c.InstanceType != "" {
			return errors.New("an instance type is for clusters in a cloud")
		}
		return nil
	}
	if c.Mode != Full || c.CNI != Hawser || c.ID != 0 || c.Store != "" || c.Manifest != "" {
		return errors.New("a cloud is for clusters with nodes on the network " + Hawser + ", and without a number, a store or a manifest of their own")
	}
	if c.DualStack && c.Cloud != region.AWS {
		return fmt.Errorf("pods in the cloud %s have IPv4 addresses alone: IPv6 is in %s", c.Cloud, region.AWS)
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
	if st.DualStack {
		spec.IPv6, spec.NodesIPv6, spec.PodsIPv6 = cloudIPv6()
	}
	for _, n := range st.Nodes {
		h := region.Host{Name: n.Name, Namespace: c.netns(n.Name), First: n.Name, IPv4: n.IPv4, MAC: n.HardwareAddr().String()}
		if st.DualStack {
			h.IPv6 = n.IPv6
		}
		spec.Hosts = append(spec.Hosts, h)
	}
	data, err := json.MarshalIndent(spec, "", "  ")
	if err == nil {
		err = os.WriteFile(c.cloudSpec(), data, 0o600)
	}
	return errors.Join(append(errs, err)...)
}

// makeRouter has the world be the cloud's router: it answers for all addresses on all links, so
// that no instance finds another one but through it.
func (c *Cluster) makeRouter(st *state) error {
	settings := map[string]string{
		"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0", "ipv4/conf/all/send_redirects": "0", "ipv4/conf/" + machine.Bridge + "/proxy_arp": "1",
	}
	if st.DualStack {
		settings["ipv6/conf/all/forwarding"], settings["ipv6/conf/"+machine.Bridge+"/proxy_ndp"] = "1", "1"
	}
	return machine.InNamespace(c.netns(worldName), func() error {
		var errs []error
		for path, value := range settings {
			errs = append(errs, os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644))
		}
		return errors.Join(errs...)
	})
}

// joinIPv6 gives an instance its IPv6 address and the way to the cloud's router, and has the router
// answer for it on the bridge, where the other machines of the subnet are.
func joinIPv6(h machine.Host, world, path string) error {
	err := machine.WithNetlink(path, func(nl *netlink.Handle) error {
		return errors.Join(machine.AddressAndUp(nl, "eth0", netip.PrefixFrom(h.IPv6, 128)), machine.AddRoute(nl, "eth0", netip.Prefix{}, fabric.IPv6Gateway()))
	})
	if err != nil {
		return err
	}
	return machine.WithNetlink(world, func(nl *netlink.Handle) error {
		bridge, err := nl.LinkByName(machine.Bridge)
		if err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		return nl.NeighSet(&netlink.Neigh{LinkIndex: bridge.Attrs().Index, Family: unix.AF_INET6, Flags: netlink.NTF_PROXY, IP: h.IPv6.AsSlice()})
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
		if s.DualStack {
			all, _, _ := cloudIPv6()
			of["ipv6-native-routing-cidr"] = all.String()
		}
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
