package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// layers says how high each folder stands. A folder that is not listed belongs to the nearest
// listed one above it: internal/datapath/fake to internal/datapath.
var layers = map[string]int{
	"api":                 0,
	"internal/atomicfile": 0,
	"internal/labels":     0,
	"internal/identity":   0,
	"internal/storekeys":  0,
	"internal/validate":   0,
	"pkg/retry":           0,

	"internal/datapath":  1,
	"internal/diskcache": 1,
	"internal/table":     1,
	"pkg/kvstore":        1,

	"pkg/allocator":    2,
	"internal/policy":  2,
	"internal/flows":   2,
	"internal/ipam":    2,
	"internal/ipcache": 2,
	"internal/node":    2,
	"internal/service": 2,

	"internal/admin":           3,
	"internal/announce":        3,
	"internal/clusterhealth":   3,
	"internal/clustermesh":     3,
	"internal/cniconf":         3,
	"internal/confdir":         3,
	"internal/daemon":          3,
	"internal/datapath/link":   3,
	"internal/datapath/loader": 3,
	"internal/datapath/maps":   3,
	"internal/deletequeue":     3,
	"internal/doublewrite":     3,
	"internal/endpoint":        3,
	"internal/exitcode":        3,
	"internal/flowmetrics":     3,
	"internal/flowserver":      3,
	"internal/ui":              3,
	"internal/k8s":             3,
	"internal/policydir":       3,
	"internal/policypreview":   3,
	"internal/storedial":       3,
	"pkg/kvstore/consul":       3,
	"pkg/kvstore/etcd":         3,

	"internal/agent":    4,
	"internal/cli":      4,
	"internal/cni":      4,
	"internal/operator": 4,
	"internal/relay":    4,
	"internal/sandbox":  4,

	"cmd": 5,
}

// unlayered folders are no part of the product: nothing of it may import them.
var unlayered = []string{"internal/archtest", "internal/testenv", "internal/bench", "bench", "test", "hack", "pkg/kvstore/kvstoretest"}

// siblings may import each other inside a layer.
var siblings = map[[2]string]string{
	{"internal/identity", "internal/labels"}:               "an identity is a set of labels with a number",
	{"internal/datapath/loader", "internal/datapath/maps"}: "programs are loaded with the maps they use",
	{"internal/daemon", "internal/confdir"}:                "where the options of a daemon come from",
	{"internal/daemon", "internal/exitcode"}:               "the command says with which code a daemon ends",
	{"internal/admin", "internal/k8s"}:                     "administration looks at, and writes, what agents and operator have in Kubernetes",
	{"internal/policypreview", "internal/policydir"}:       "policies that are asked about are read as files of them are",
	{"internal/policypreview", "internal/flowserver"}:      "it is served beside flows, to the same clients",
	{"internal/storedial", "pkg/kvstore/etcd"}:             "the one place that knows every kind of store",
	{"internal/storedial", "pkg/kvstore/consul"}:           "the one place that knows every kind of store",
}

// folder returns the listed folder that a package belongs to.
func folder(path string) (string, bool) {
	if under(path, unlayered...) {
		return "", false
	}
	for p := path; p != "" && p != "."; {
		if _, ok := layers[p]; ok {
			return p, true
		}
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			break
		}
		p = p[:i]
	}
	return "", false
}

func under(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") })
}

func TestEveryPackageHasALayer(t *testing.T) {
	const reason = "a package without a place grows imports in every direction; add it to layers, as low as it can be"
	for _, p := range packages(t) {
		if _, ok := folder(p.path); !ok && !under(p.path, append(unlayered, "bpf")...) {
			t.Errorf("%s has no layer: %s", p.path, reason)
		}
	}
}

func TestImportsGoDown(t *testing.T) {
	const reason = "imports go to a lower layer only, so that a package can be read, tested and moved with nothing but what is below it"
	for _, p := range packages(t) {
		from, ok := folder(p.path)
		if !ok {
			continue
		}
		for _, imp := range p.imports {
			to, ok := folder(imp)
			if !ok || from == to {
				continue
			}
			if _, ok := siblings[[2]string{from, to}]; ok {
				continue
			}
			if layers[to] >= layers[from] {
				t.Errorf("%s (layer %d) imports %s (layer %d): %s", p.path, layers[from], imp, layers[to], reason)
			}
		}
	}
}

func TestFoldersHaveNoCycle(t *testing.T) {
	const reason = "Go forbids cycles of packages, not of folders; a cycle of folders is one big package in disguise"
	edges := map[string]map[string]bool{}
	for _, p := range packages(t) {
		from, ok := folder(p.path)
		if !ok {
			continue
		}
		for _, imp := range p.imports {
			if to, ok := folder(imp); ok && to != from {
				if edges[from] == nil {
					edges[from] = map[string]bool{}
				}
				edges[from][to] = true
			}
		}
	}
	state := map[string]int{} // 1 being visited, 2 done
	var visit func(f string, path []string)
	visit = func(f string, path []string) {
		if state[f] == 2 {
			return
		}
		if state[f] == 1 {
			t.Errorf("cycle of folders %s: %s", strings.Join(append(path, f), " -> "), reason)
			return
		}
		state[f] = 1
		for to := range edges[f] {
			visit(to, append(path, f))
		}
		state[f] = 2
	}
	for f := range edges {
		visit(f, nil)
	}
}

func TestTestSupportStaysOutOfTheProduct(t *testing.T) {
	const reason = "test support may be slow, privileged and careless with memory; the product may not"
	for _, p := range packages(t) {
		if under(p.path, unlayered...) {
			continue
		}
		for _, imp := range p.imports {
			if under(imp, unlayered...) {
				t.Errorf("%s imports %s outside of its tests: %s", p.path, imp, reason)
			}
		}
	}
}

// Import path prefixes of libraries whose reach is bounded.
const (
	clientGo   = "k8s.io/client-go"
	runtimeCtl = "sigs.k8s.io/controller-runtime"
	ebpf       = "github.com/cilium/ebpf"
	netlink    = "github.com/vishvananda/netlink"
	nftables   = "github.com/google/nftables"
	netfilter  = "github.com/mdlayher/netlink"
	etcd       = "go.etcd.io/etcd"
	consul     = "github.com/hashicorp/consul"
	awsSDK     = "github.com/aws/"
	azureSDK   = "github.com/Azure/"
	alibabaSDK = "github.com/aliyun/"
	cobra      = "github.com/spf13/cobra"
	viper      = "github.com/spf13/viper"
)

func TestLowLayersLinkNoHeavyLibrary(t *testing.T) {
	const reason = "layers 0 to 2 are the knowledge of the product: they must build and test in a second, without a kernel, a cluster or a command line"
	heavy := []string{clientGo, runtimeCtl, ebpf, netlink, nftables, netfilter, etcd, consul, awsSDK, azureSDK, alibabaSDK, cobra, viper}
	for _, p := range packages(t) {
		f, ok := folder(p.path)
		if !ok || layers[f] > 2 {
			continue
		}
		for _, lib := range heavy {
			if i := slices.IndexFunc(p.deps, func(d string) bool { return strings.HasPrefix(d, lib) }); i >= 0 {
				t.Errorf("%s links %s: %s", p.path, p.deps[i], reason)
			}
		}
	}
}

func TestKnowledgeReachesNoStore(t *testing.T) {
	const reason = "what is known of nodes and addresses comes from a store, from objects and from other clusters: internal/announce brings it from the store"
	for _, p := range packages(t) {
		if f, ok := folder(p.path); ok && layers[f] == 2 && f != "pkg/allocator" && slices.Contains(p.imports, "pkg/kvstore") {
			t.Errorf("%s imports pkg/kvstore: %s", p.path, reason)
		}
	}
}

func TestPolicyAndLabelsArePure(t *testing.T) {
	const reason = "policy decides about security: it stands on the standard library, layer 0, the rows of internal/datapath and the plain types of Kubernetes alone, so that it can be read as a whole and checked against an oracle"
	// The objects that policy reads are its vocabulary as much as api/v2 is.
	types := []string{"k8s.io/api/networking", "k8s.io/api/core", "k8s.io/apimachinery/pkg/apis/meta", "k8s.io/apimachinery/pkg/util/intstr",
		"sigs.k8s.io/network-policy-api/apis"}
	for _, p := range packages(t) {
		if !under(p.path, "internal/policy", "internal/labels") {
			continue
		}
		for _, d := range p.imports {
			f, ours := folder(d)
			switch {
			case ours && (f == "internal/policy" || layers[f] == 0):
			case under(p.path, "internal/policy") && d == "internal/datapath": // the exact one: it stands on the standard library and layer 0 itself
			case !ours && standard(d):
			case under(p.path, "internal/policy") && under(d, types...):
			default:
				t.Errorf("%s imports %s: %s", p.path, d, reason)
			}
		}
	}
}

// standard reports whether an import path is of the standard library: no dot in its first element.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") && !strings.HasPrefix(path, "internal/") && !strings.HasPrefix(path, "api/") && !strings.HasPrefix(path, "pkg/")
}

func TestThirdPartyEdgesHaveOnePackage(t *testing.T) {
	edges := []struct {
		lib      string
		packages []string
		reason   string
	}{
		{clientGo, []string{"internal/admin", "internal/k8s", "internal/operator"}, "whoever else wants Kubernetes objects reads a table"},
		{runtimeCtl, []string{"internal/operator"}, "the agent has no controllers of that kind"},
		{ebpf, []string{"internal/datapath/maps", "internal/datapath/loader", "bpf"}, "the kernel's maps have one writer"},
		{netlink, []string{"internal/datapath/link", "internal/cni", "internal/sandbox"}, "links and routes have one owner; the plugin makes the pod's end, the sandbox makes the machines around the product"},
		{nftables, []string{"internal/datapath/link", "internal/sandbox/fabric"}, "masquerading is part of the node's links; the network of a cloud checks sources"},
		{netfilter, []string{"internal/datapath/link"}, "as nftables, for what that library cannot write"},
		{etcd, []string{"pkg/kvstore/etcd", "internal/sandbox"}, "everyone else speaks to kvstore.Backend; the sandbox runs the server"},
		{consul, []string{"pkg/kvstore/consul"}, "everyone else speaks to kvstore.Backend"},
		{awsSDK, []string{"internal/operator"}, "the agent links no cloud SDK"},
		{azureSDK, []string{"internal/operator"}, "the agent links no cloud SDK"},
		{alibabaSDK, []string{"internal/operator"}, "the agent links no cloud SDK"},
		{cobra, []string{"internal/agent", "internal/cli", "internal/daemon", "internal/exitcode", "internal/operator", "internal/relay", "internal/sandbox", "cmd"}, "only commands have a command line"},
		{viper, []string{"internal/agent", "internal/operator", "cmd"}, "everyone else is handed a Config"},
	}
	for _, p := range packages(t) {
		if under(p.path, unlayered...) {
			continue
		}
		for _, h := range edges {
			for _, imp := range p.imports {
				if strings.HasPrefix(imp, h.lib) && !under(p.path, h.packages...) {
					t.Errorf("%s imports %s, which only %v may import: %s", p.path, imp, h.packages, h.reason)
				}
			}
		}
	}
}

func TestProgramsLinkNoMoreThanTheyNeed(t *testing.T) {
	rules := []struct {
		program string
		libs    []string
		reason  string
	}{
		{"cmd/hawser-cni", []string{clientGo, ebpf, etcd, cobra, viper, "github.com/prometheus"}, "it is exec'd for every pod: its start-up time counts"},
		{"cmd/hawser-operator", []string{"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager", "github.com/aliyun/alibaba-cloud-sdk-go/services"},
			"docs/design/0022-cloud-sdks.md: their compilation costs everybody more than all of the product"},
		{"cmd/hawser-agent", []string{awsSDK, azureSDK, alibabaSDK, "go.etcd.io/etcd/server"}, "it runs on every node, with rights that a cloud SDK must not have"},
	}
	for _, p := range packages(t) {
		for _, r := range rules {
			if p.path != r.program {
				continue
			}
			for _, lib := range r.libs {
				if i := slices.IndexFunc(p.deps, func(d string) bool { return strings.HasPrefix(d, lib) }); i >= 0 {
					t.Errorf("%s links %s (%s): %s", p.path, p.deps[i], why(t, p.path, p.deps[i]), r.reason)
				}
			}
		}
	}
}

// why names a package of ours that imports dep, to save a search.
func why(t *testing.T, root, dep string) string {
	t.Helper()
	all := map[string]pkg{}
	for _, p := range packages(t) {
		all[p.path] = p
	}
	for _, d := range append([]string{root}, all[root].deps...) {
		if p, ok := all[d]; ok && slices.Contains(p.imports, dep) {
			return fmt.Sprintf("imported by %s", d)
		}
	}
	return "through a library"
}
