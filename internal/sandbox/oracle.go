package sandbox

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policy/oracle"
)

// clusterName is what the agents of a sandbox call their cluster.
const clusterName = "default"

// expectations are what the policies of a directory allow between parties. It reads the files
// itself and asks the naive oracle, so it shares neither state nor computation with the agents.
type expectations struct {
	cfg      oracle.Config
	policies []oracle.Policy
	ends     map[string]labels.Set // of pods
}

func newExpectations(dir, mode string, parties []party) (*expectations, error) {
	j := &expectations{
		cfg:  oracle.Config{Mode: mode, ClusterName: clusterName, AllowLocalhost: true, DefaultLocalCluster: true, AllowNonDefaultDeny: true},
		ends: map[string]labels.Set{},
	}
	for _, p := range parties {
		if p.labels == nil {
			continue
		}
		all, err := labels.PodLabels(labels.Pod{Namespace: p.namespace, Cluster: clusterName, Labels: p.labels})
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", p.name, err)
		}
		j.ends[p.name], _ = labels.DefaultFilter().Split(all)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range files {
		ext := filepath.Ext(f.Name())
		if f.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		ps, err := readPolicies(data)
		if err != nil {
			errs = append(errs, fmt.Errorf("policy file %s: %w", f.Name(), err))
		}
		j.policies = append(j.policies, ps...)
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("the agents enforce a policy only in part, or its last good version; mend it, then compare: %w", errors.Join(errs...))
	}
	return j, nil
}

// readPolicies reads the policy objects of a file, separated by "---" lines.
func readPolicies(data []byte) ([]oracle.Policy, error) {
	var out []oracle.Policy
	for _, doc := range bytes.Split(append([]byte("\n"), data...), []byte("\n---")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return nil, err
		}
		switch kind.Kind {
		case "":
			continue // nothing but comments
		case "CiliumNetworkPolicy":
			var p v2.CiliumNetworkPolicy
			if err := yaml.UnmarshalStrict(doc, &p); err != nil {
				return nil, err
			}
			p.Namespace = cmp.Or(p.Namespace, "default")
			if _, err := policy.Parse(&p); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Name, err)
			}
			out = append(out, oracle.FromObject(&p))
		case "CiliumClusterwideNetworkPolicy":
			var p v2.CiliumClusterwideNetworkPolicy
			if err := yaml.UnmarshalStrict(doc, &p); err != nil {
				return nil, err
			}
			if _, err := policy.ParseClusterwide(&p); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Name, err)
			}
			out = append(out, oracle.FromClusterwide(&p))
		default:
			return nil, fmt.Errorf("kind %q is not a policy", kind.Kind)
		}
	}
	return out, nil
}

// expect reports whether a probe should get through, and the rule that decides.
func (j *expectations) expect(from, to party, proto Protocol, addr netip.Addr, port uint16) (bool, string) {
	number := uint8(6)
	switch {
	case proto == UDP:
		number = 17
	case proto == ICMP && addr.Is6():
		number, port = 58, 128
	case proto == ICMP:
		number, port = 1, 8
	}
	return oracle.Verdict(j.cfg, j.policies, j.end(from, addr), j.end(to, addr), number, port)
}

// end describes a party to the oracle; the world by its address of the family that is probed.
func (j *expectations) end(p party, family netip.Addr) oracle.End {
	if set, ok := j.ends[p.name]; ok {
		return oracle.End{Labels: set}
	}
	if family.Is6() {
		return oracle.End{Addr: worldHost().IPv6}
	}
	return oracle.End{Addr: worldHost().IPv4}
}
