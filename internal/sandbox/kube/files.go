package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/sandbox/kube/image"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// containerdConfig is the runtime's configuration. runc is its path; oomAdjust says that processes
// may be made less likely victims than the daemon is.
func containerdConfig(runc string, oomAdjust bool) string {
	const text = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.erofs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]

[grpc]
  address = %q

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = %q

[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = %t
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = %q
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
`
	return fmt.Sprintf(text, criSocket, image.PauseName, !oomAdjust, runc)
}

func kubeletConfig(dns netip.Addr) ([]byte, error) {
	none := "0%"
	return yaml.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
			"x509": map[string]any{"clientCAFile": nodeFiles + "/ca.crt"},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"tlsCertFile":              nodeFiles + "/kubelet.crt",
		"tlsPrivateKeyFile":        nodeFiles + "/kubelet.key",
		"failCgroupV1":             false,
		"cgroupDriver":             "cgroupfs",
		"clusterDNS":               []string{dns.String()},
		"clusterDomain":            "cluster.local",
		"resolvConf":               nodeFiles + "/resolv.conf", // empty: there is no world that names could lead to
		"containerRuntimeEndpoint": "unix://" + criSocket,
		"volumePluginDir":          "/var/lib/kubelet/volumeplugins", // the usual place is not the node's own
		"failSwapOn":               false,
		// The machine's disk and memory are shared with everything else on it: a node that measures
		// them would evict for what others do.
		"evictionHard": map[string]string{
			"memory.available": none, "nodefs.available": none, "nodefs.inodesFree": none, "imagefs.available": none, "imagefs.inodesFree": none,
		},
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99, // nothing could be pulled again
		"maxPods":             250,
		"serializeImagePulls": false,
		"registryPullQPS":     0,
		"eventRecordQPS":      0,
		"kubeAPIQPS":          100,
		"kubeAPIBurst":        200,
		"shutdownGracePeriod": "0s",
	})
}

func proxyConfig(n *node, pods string) ([]byte, error) {
	return yaml.Marshal(map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"clientConnection": map[string]any{"kubeconfig": nodeFiles + "/kube-proxy.kubeconfig"},
		// As clusters have it that say nothing; its rules drop what conntrack takes for invalid.
		"mode":             "iptables",
		"clusterCIDR":      pods,
		"hostnameOverride": n.Name,
		"bindAddress":      n.IPv4.String(),
		// The table of connections is sized for the whole machine, and not by a node.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"iptables":  map[string]any{"minSyncPeriod": "100ms", "syncPeriod": "30s"},
	})
}

// ptpConfig is the CNI configuration of a node with Debian's plugins.
func ptpConfig(n *node) ([]byte, error) {
	var pools [][]map[string]string
	routes := []map[string]string{{"dst": "0.0.0.0/0"}}
	for _, cidr := range n.podCIDRs() {
		pools = append(pools, []map[string]string{{"subnet": cidr}})
	}
	if n.Pods6.IsValid() {
		routes = append(routes, map[string]string{"dst": "::/0"})
	}
	return json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0", "name": "ptp",
		"plugins": []map[string]any{
			{"type": "ptp", "mtu": 1500, "ipMasq": false, "ipam": map[string]any{
				"type": "host-local", "dataDir": "/var/lib/cni/networks", "ranges": pools, "routes": routes,
			}},
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
}

// debianPlugins is where the package containernetworking-plugins puts them.
const debianPlugins = "/usr/lib/cni"

// writeNode writes what a node finds in nodeFiles, and its part of /opt and /etc, into the node's
// directory.
func (c *Cluster) writeNode(st *state, n *node, images []string, early int) error {
	dir := c.nodeDir(n.Name)
	for _, d := range []string{"node", "cni/net.d", "opt/cni/bin", "etc", "var/log"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	kubelet, err := kubeletConfig(st.plan().dnsService())
	if err != nil {
		return err
	}
	proxy, err := proxyConfig(n, ranges(st.DualStack, st.plan().pods))
	if err != nil {
		return err
	}
	config := initConfig{
		Name: n.Name, Cgroup: nodeCgroup(st.Name, n.Name), Programs: st.Programs, BinDir: st.BinDir, Images: images, Early: early,
		Kubelet: []string{
			nodeFiles + "/kube/kubelet", "--config=" + nodeFiles + "/kubelet.yaml", "--kubeconfig=" + nodeFiles + "/kubeconfig",
			"--hostname-override=" + n.Name, "--node-ip=" + strings.Join(n.addresses(), ","), "--v=1",
		},
	}
	if st.KubeProxy {
		config.Proxy = []string{nodeFiles + "/kube/kube-proxy", "--config=" + nodeFiles + "/kube-proxy.yaml"}
	}
	init, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"node/init.json": init, "node/kubelet.yaml": kubelet, "node/kube-proxy.yaml": proxy, "node/resolv.conf": nil,
		"node/containerd.toml": []byte(containerdConfig(runc, mayAdjustOOM())),
		"etc/hosts":            []byte(hostsFile(st)), "etc/resolv.conf": nil, "etc/hostname": []byte(n.Name + "\n"),
	}
	for from, to := range map[string]string{
		"ca.crt": "ca.crt", n.Name + ".crt": "kubelet.crt", n.Name + ".key": "kubelet.key", n.Name + ".kubeconfig": "kubeconfig",
		"kube-proxy.kubeconfig": "kube-proxy.kubeconfig",
	} {
		data, err := os.ReadFile(c.path("pki", from))
		if err != nil {
			return err
		}
		files["node/"+to] = data
	}
	plugins := []string{"loopback"}
	if st.CNI == PTP {
		if files["cni/net.d/10-ptp.conflist"], err = ptpConfig(n); err != nil {
			return err
		}
		plugins = append(plugins, "ptp", "host-local", "portmap")
	}
	for _, p := range plugins {
		data, err := os.ReadFile(filepath.Join(debianPlugins, p))
		if errors.Is(err, os.ErrNotExist) && st.CNI != PTP {
			continue // the runtime brings up the loopback itself
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "opt/cni/bin", p), data, 0o755); err != nil {
			return err
		}
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return os.Chmod(filepath.Join(dir, "node"), 0o700) // keys
}

// mayAdjustOOM reports whether this process may lower a process's likelihood of being killed for
// want of memory, as containerd does for pods.
func mayAdjustOOM() bool {
	const file = "/proc/self/oom_score_adj"
	have, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	err = os.WriteFile(file, []byte("-999"), 0o644)
	return errors.Join(err, os.WriteFile(file, have, 0o644)) == nil
}

func hostsFile(st *state) string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
	hosts := []machine.Host{st.plan().world(), st.plan().master()}
	for _, n := range st.Nodes {
		hosts = append(hosts, n.Host)
	}
	for _, h := range hosts {
		fmt.Fprintf(&b, "%s %s\n", h.IPv4, h.Name)
	}
	return b.String()
}
