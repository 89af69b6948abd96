package main

import (
	"context"
	"maps"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// cluster is one with a few objects, which templates look up.
type cluster map[string]map[string]any // by kind and name

func (c cluster) GetClientFor(_, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return kindOf{cluster: c, kind: kind}, true, nil
}

type kindOf struct {
	dynamic.NamespaceableResourceInterface // of which no more is used than these methods
	cluster                                cluster
	kind                                   string
}

func (k kindOf) Namespace(string) dynamic.ResourceInterface { return k }

func (k kindOf) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	if o := k.cluster[k.kind+" "+name]; o != nil {
		return &unstructured.Unstructured{Object: o}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: k.kind}, name)
}

// install returns the cluster that a chart makes of values, given one that is there.
func install(t *testing.T, there cluster, set string) (cluster, error) {
	t.Helper()
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	values, err := strvals.Parse(set)
	if err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: "hawser", Namespace: "kube-system", Revision: 2, IsUpgrade: len(there) > 0}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.RenderWithClientProvider(c, all, there)
	if err != nil {
		return nil, err
	}
	out := cluster{}
	for name, text := range files {
		if strings.HasSuffix(name, ".txt") {
			continue
		}
		for doc := range strings.SplitSeq(text, "\n---\n") {
			var o map[string]any
			if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if u := (&unstructured.Unstructured{Object: o}); u.GetName() != "" {
				out[u.GetKind()+" "+u.GetName()] = o
			}
		}
	}
	return out, nil
}

// TestUpgradeThatCuts: an upgrade with values that cut the nodes of a running cluster from each
// other until all agents are replaced is refused, unless it names them.
func TestUpgradeThatCuts(t *testing.T) {
	t.Parallel()
	const (
		etcd    = ",kvstore.type=etcd,kvstore.options.etcd\\.address=http://192.0.2.1:2379"
		slim    = "ciliumEndpointSlice.enabled=true,ciliumEndpointSlice.mode=slim,identity.managementMode=operator"
		replace = ",kubeProxyReplacement=true,k8s.serviceHost=192.0.2.10"
	)
	for _, tt := range []struct {
		was, is string
		refused string // what allows it; empty for what is not refused
	}{
		{"", "", ""},
		{"", "log.debug=true,ciliumEndpointSlice.enabled=true,hubble.enabled=true", ""},
		{"", "routing.mode=native", "routing.mode=native"},
		{"routing.mode=native", "", "routing.mode=tunnel"},
		{"", "extraConfig.routing-mode=native", "routing.mode=native"},
		{"", "routing.tunnelPort=8473", "routing.tunnelPort=8473"},
		{"routing.mode=native", "routing.mode=native,routing.tunnelPort=8473", ""},
		{"routing.tunnelPort=8473", "routing.tunnelPort=8473", ""},
		{"", "cluster.id=7", "cluster.id=7"},
		{"cluster.id=7", "cluster.id=8", "cluster.id=8"},
		{"cluster.id=7", "", "cluster.id=0"},
		{"cluster.id=7", "cluster.id=7", ""},
		{"", etcd[1:], "kvstore.type=etcd"},
		{etcd[1:], "", "kvstore.type="},
		{etcd[1:], "kvstore.type=consul,kvstore.options.consul\\.address=http://192.0.2.1:8500", "kvstore.type=consul"},
		{etcd[1:], etcd[1:] + ",identity.allocationMode=doublewrite-readcrd", ""},
		{etcd[1:], etcd[1:] + ",identity.allocationMode=doublewrite-readkvstore", "identity.allocationMode=doublewrite-readkvstore"},
		{etcd[1:] + ",identity.allocationMode=kvstore", etcd[1:], "identity.allocationMode=crd"},
		{etcd[1:] + ",identity.allocationMode=doublewrite-readcrd", etcd[1:] + ",identity.allocationMode=kvstore", "identity.allocationMode=kvstore"},
		{etcd[1:] + ",identity.allocationMode=doublewrite-readcrd", etcd[1:], ""},
		{"ciliumEndpointSlice.enabled=true", "", "ciliumEndpointSlice.enabled=false"},
		{"ciliumEndpointSlice.enabled=true,agent.extraArgs={--enable-cilium-endpoint-slice=false}", "", ""},
		{slim, "ciliumEndpointSlice.enabled=true,identity.managementMode=operator", ""},
		{"ipam.mode=kubernetes", "", "ipam.mode=cluster-pool"},
		{"", "ipam.mode=multi-pool", "ipam.mode=multi-pool"},
		{"", "ipam.mode=multi-pool,ipam.multiPool.migrateFromClusterPool=true", ""},
		{"ipam.mode=multi-pool,ipam.multiPool.migrateFromClusterPool=true", "", "ipam.mode=cluster-pool"},
		{"", replace[1:], ""},
		{"", replace[1:] + ",loadBalancer.mode=dsr", "kubeProxyReplacement=true"},
		{"", replace[1:] + ",loadBalancer.mode=hybrid", "kubeProxyReplacement=true"},
		{"", replace[1:] + ",loadBalancer.modeAnnotation=true", "kubeProxyReplacement=true"},
		{replace[1:], replace[1:] + ",loadBalancer.mode=dsr", ""},
		{replace[1:] + ",loadBalancer.mode=dsr", "", "kubeProxyReplacement=false"},
		{replace[1:] + ",loadBalancer.mode=dsr", replace[1:], ""},
		// Allowed is one value, and not what is changed later.
		{"upgrade.allow={routing.mode=native}", "upgrade.allow={routing.mode=native},cluster.id=7", "cluster.id=7"},
		{"upgrade.allow={routing.mode=native},routing.mode=native", "upgrade.allow={routing.mode=native}", "routing.mode=tunnel"},
		{"", "upgrade.allow={}", ""},
	} {
		what := tt.was + " -> " + tt.is
		there, err := install(t, nil, tt.was)
		if err != nil {
			t.Fatalf("%s: install: %v", what, err)
		}
		_, err = install(t, there, tt.is)
		if tt.refused == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		if allow := "upgrade.allow={" + tt.refused + "}"; err == nil || !strings.Contains(err.Error(), "'"+allow+"'") {
			t.Errorf("%s: %v; want an error that ends with %s", what, err, allow)
			continue
		}
		// What the error names is enough.
		allowed := strings.TrimPrefix(tt.is+",upgrade.allow={"+tt.refused+"}", ",")
		if strings.Contains(tt.is, "upgrade.allow") {
			allowed = strings.ReplaceAll(tt.is, "{routing.mode=native}", "{routing.mode=native,"+tt.refused+"}")
		}
		if _, err := install(t, there, allowed); err != nil {
			t.Errorf("%s: although it is allowed: %v", what, err)
		}
		if _, err := install(t, nil, tt.is); err != nil {
			t.Errorf("%s: where nothing is installed: %v", what, err)
		}
		// The ConfigMap of another network has the same name.
		other := maps.Clone(there["ConfigMap cilium-config"])
		other["metadata"] = map[string]any{"name": "cilium-config", "labels": map[string]any{"app.kubernetes.io/part-of": "cilium"}}
		if _, err := install(t, cluster{"ConfigMap cilium-config": other}, tt.is); err != nil {
			t.Errorf("%s: where another network is installed: %v", what, err)
		}
	}
	if _, err := install(t, nil, "upgrade.allow={log.debug=true}"); err == nil || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("what no upgrade refuses can be allowed: %v", err)
	}
}
