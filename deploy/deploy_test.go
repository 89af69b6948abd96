// Package deploy_test checks the manifests that Kubernetes is given: that a real API server takes
// them, that the programs know every option in them, and that they grant what the programs need and
// nothing else.
package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/api/crds"
	"github.com/hawser-net/hawser/internal/agent"
	"github.com/hawser-net/hawser/internal/operator"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

//go:generate go -C render run . -chart ../helm/hawser -o ../hawser.yaml
//go:generate go -C render run . -chart ../helm/hawser -values ../testdata/hubble-values.yaml -o ../testdata/hubble.yaml

// Files with what the chart renders: by default, and with flows of all nodes and their page.
const (
	defaults   = "hawser.yaml"
	withHubble = "testdata/hubble.yaml"
)

// objects returns the objects of a file.
func objects(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []*unstructured.Unstructured
	for _, doc := range bytes.Split(data, []byte("\n---\n"))[1:] {
		raw, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw); err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		out = append(out, u)
	}
	return out
}

// one reads the object of that kind and name into dst.
func one(t *testing.T, kind, name string, dst any) {
	t.Helper()
	oneOf(t, defaults, kind, name, dst)
}

// oneOf is one of a file.
func oneOf(t *testing.T, file, kind, name string, dst any) {
	t.Helper()
	for _, u := range objects(t, file) {
		if u.GetKind() == kind && u.GetName() == name {
			raw, err := json.Marshal(u.Object)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(raw, dst); err != nil {
				t.Fatalf("%s %s: %v", kind, name, err)
			}
			return
		}
	}
	t.Fatalf("no %s %s", kind, name)
}

// flagSets returns the options of both programs.
func flagSets() map[string]*pflag.FlagSet {
	a, o := agent.Defaults(), operator.Defaults()
	out := map[string]*pflag.FlagSet{"hawser-agent": pflag.NewFlagSet("", pflag.ContinueOnError), "hawser-operator": pflag.NewFlagSet("", pflag.ContinueOnError)}
	a.Flags(out["hawser-agent"])
	o.Flags(out["hawser-operator"])
	return out
}

// TestEveryOptionIsKnown: a file of the configuration directory that no program knows is ignored,
// so a misspelled one would do nothing.
func TestEveryOptionIsKnown(t *testing.T) {
	t.Parallel()
	for _, file := range []string{defaults, withHubble} {
		var config corev1.ConfigMap
		oneOf(t, file, "ConfigMap", "cilium-config", &config)
		if len(config.Data) < 20 {
			t.Fatalf("%s: only %d options", file, len(config.Data))
		}
		for key, value := range config.Data {
			known := false
			for program, fs := range flagSets() {
				if fs.Lookup(key) == nil {
					continue
				}
				known = true
				if err := fs.Set(key, value); err != nil {
					t.Errorf("%s: %s refuses %s=%s: %v", file, program, key, value, err)
				}
			}
			if !known {
				t.Errorf("%s: neither program has the option %s", file, key)
			}
		}
	}
}

// TestPartsFit compares what must be the same in several places.
func TestPartsFit(t *testing.T) {
	t.Parallel()
	var ds appsv1.DaemonSet
	var dep appsv1.Deployment
	var config corev1.ConfigMap
	one(t, "DaemonSet", "hawser-agent", &ds)
	one(t, "Deployment", "hawser-operator", &dep)
	one(t, "ConfigMap", "cilium-config", &config)
	pods := map[string]corev1.PodTemplateSpec{"hawser-agent": ds.Spec.Template, "hawser-operator": dep.Spec.Template}
	for program, pod := range pods {
		c := pod.Spec.Containers[0]
		if c.Command[0] != program {
			t.Errorf("%s: command %v", program, c.Command)
		}
		fs := flagSets()[program]
		if err := fs.Parse(c.Args); err != nil {
			t.Errorf("%s: arguments: %v", program, err)
		}
		dir, err := fs.GetString("config-dir")
		if err != nil || !mounted(pod.Spec, 0, dir, "config") {
			t.Errorf("%s: the configuration is not mounted at %q", program, dir)
		}
		if !pod.Spec.HostNetwork {
			t.Errorf("%s: must run before there is a pod network", program)
		}
	}
	probe := ds.Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet
	if probe.Port.String() != config.Data["agent-health-port"] || probe.Host != "127.0.0.1" {
		t.Errorf("the agent's health is asked for at %s:%s", probe.Host, probe.Port.String())
	}
	probe = dep.Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet
	if want := "localhost:" + probe.Port.String(); config.Data["operator-api-serve-addr"] != want {
		t.Errorf("the operator's health is asked for at %s and served at %s", want, config.Data["operator-api-serve-addr"])
	}
	for key, volume := range map[string]string{"state-dir": "state", "cgroup-root": "cgroup"} {
		if !mounted(ds.Spec.Template.Spec, 0, config.Data[key], volume) {
			t.Errorf("%s %s is not the mount of the volume %s", key, config.Data[key], volume)
		}
	}
	conf := config.Data["write-cni-conf-when-ready"]
	if !mounted(ds.Spec.Template.Spec, 0, conf[:strings.LastIndexByte(conf, '/')], "cni-conf") {
		t.Errorf("the directory of %s is not mounted", conf)
	}
	// The plugin runs outside of the pod and must find the socket at the same path.
	for _, v := range ds.Spec.Template.Spec.Volumes {
		if v.Name == "state" && (v.HostPath == nil || v.HostPath.Path != config.Data["state-dir"]) {
			t.Errorf("the state directory %s is elsewhere on the node: %+v", config.Data["state-dir"], v.HostPath)
		}
	}
	init := ds.Spec.Template.Spec.InitContainers[0]
	if !slices.Equal(init.Command[:3], []string{"hawser-cni", "install", "--dir"}) || init.VolumeMounts[0].MountPath != init.Command[3] {
		t.Errorf("the plugin is installed by %v in %v", init.Command, init.VolumeMounts)
	}
	// The operator finds agents by their labels.
	if f := flagSets()["hawser-operator"].Lookup("cilium-pod-labels"); f != nil {
		sel, err := labels.Parse(f.DefValue)
		if err != nil || !sel.Matches(labels.Set(ds.Spec.Template.Labels)) {
			t.Errorf("the operator looks for agents with %s", f.DefValue)
		}
	}
}

// TestOperatorPlacement: the operator starts in a cluster in which no node is ready, and does not
// stay where it cannot run.
func TestOperatorPlacement(t *testing.T) {
	t.Parallel()
	var dep appsv1.Deployment
	one(t, "Deployment", "hawser-operator", &dep)
	const noSchedule, noExecute = corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute
	for _, tt := range []struct {
		key    string
		effect corev1.TaintEffect
		stays  time.Duration // 0: it is neither placed there nor stays
	}{
		{"node-role.kubernetes.io/control-plane", noSchedule, forever},
		{"CriticalAddonsOnly", noSchedule, forever},
		{"node.cloudprovider.kubernetes.io/uninitialized", noSchedule, forever},
		{"node.kubernetes.io/not-ready", noSchedule, forever},
		{"node.kubernetes.io/not-ready", noExecute, forever},
		{"node.kubernetes.io/network-unavailable", noSchedule, forever},
		{operator.Defaults().Nodes.TaintKey, noSchedule, forever},
		{operator.Defaults().Nodes.TaintKey, noExecute, forever},
		{"node.kubernetes.io/unschedulable", noSchedule, 0}, // cordoned, drained
		{"node.kubernetes.io/unreachable", noSchedule, 0},
		{"node.kubernetes.io/unreachable", noExecute, time.Minute},
		{"node.kubernetes.io/out-of-service", noExecute, 0},
		{"node.kubernetes.io/disk-pressure", noSchedule, 0},
		{"dedicated", noSchedule, 0},
	} {
		if got := tolerates(dep.Spec.Template.Spec.Tolerations, &corev1.Taint{Key: tt.key, Value: "true", Effect: tt.effect}); got != tt.stays {
			t.Errorf("taint %s:%s: tolerated for %v, want %v", tt.key, tt.effect, got, tt.stays)
		}
	}
	var budget policyv1.PodDisruptionBudget
	one(t, "PodDisruptionBudget", "hawser-operator", &budget)
	sel, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil || !sel.Matches(labels.Set(dep.Spec.Template.Labels)) || budget.Spec.MaxUnavailable.IntValue() != 1 || budget.Namespace != dep.Namespace {
		t.Errorf("the budget of evictions is %+v, %v", budget.Spec, err)
	}
}

const forever = time.Duration(math.MaxInt64)

// tolerates returns for how long a pod with these tolerations stays on a node with a taint.
func tolerates(list []corev1.Toleration, taint *corev1.Taint) (stays time.Duration) {
	for i := range list {
		switch {
		case !list[i].ToleratesTaint(logr.Discard(), taint, false):
		case list[i].TolerationSeconds == nil:
			return forever
		default:
			stays = time.Duration(*list[i].TolerationSeconds) * time.Second
		}
	}
	return stays
}

func mounted(pod corev1.PodSpec, container int, path, volume string) bool {
	return slices.ContainsFunc(pod.Containers[container].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path && m.Name == volume })
}

// rights are all rights of the programs: "group/resource verbs", those with names behind an @.
var rights = map[string][]string{
	"hawser-agent": {
		"/namespaces get,list,watch", "/nodes get,list,watch", "/pods get,list,watch", "/services get,list,watch",
		"cilium.io/ciliumclusterwidenetworkpolicies get,list,watch",
		"cilium.io/ciliumendpoints create,delete,get,list,patch,watch",
		"cilium.io/ciliumendpointslices get,list,watch",
		"cilium.io/ciliumidentities create,get,list,update,watch",
		"cilium.io/ciliumnetworkpolicies get,list,watch",
		"cilium.io/ciliumnodes create,get,list,update,watch",
		"discovery.k8s.io/endpointslices get,list,watch",
		"events.k8s.io/events create",
		"networking.k8s.io/networkpolicies get,list,watch",
		"policy.networking.k8s.io/clusternetworkpolicies get,list,watch",
	},
	"hawser-operator": {
		"/namespaces get,list,watch", "/nodes get,list,patch,watch", "/nodes/status patch", "/pods delete,get,list,watch", "/services get,list,watch",
		"apiextensions.k8s.io/customresourcedefinitions create",
		"apiextensions.k8s.io/customresourcedefinitions@definitions get,update",
		"cilium.io/ciliumclusterwidenetworkpolicies list,watch",
		"cilium.io/ciliumclusterwidenetworkpolicies/status patch",
		"cilium.io/ciliumendpoints delete,deletecollection,get,list,watch",
		"cilium.io/ciliumendpointslices deletecollection,list,watch",
		"cilium.io/ciliumidentities delete,list,patch,watch",
		"cilium.io/ciliumnetworkpolicies list,watch",
		"cilium.io/ciliumnetworkpolicies/status patch",
		"cilium.io/ciliumnodes delete,get,list,patch,watch",
		"cilium.io/ciliumnodes/status patch",
		"discovery.k8s.io/endpointslices get,list,watch",
		"events.k8s.io/events create,patch",
		"networking.k8s.io/networkpolicies list,watch",
		"policy.networking.k8s.io/clusternetworkpolicies list,watch",
		"policy.networking.k8s.io/clusternetworkpolicies/status patch",
	},
}

// TestRights pins what is granted: a new right is a decision.
func TestRights(t *testing.T) {
	t.Parallel()
	all, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}
	var definitions []string
	for _, crd := range all {
		definitions = append(definitions, crd.Name)
	}
	for name, want := range rights {
		var role rbacv1.ClusterRole
		one(t, "ClusterRole", name, &role)
		if diff := cmp.Diff(want, granted(role.Rules, definitions)); diff != "" {
			t.Errorf("%s (-want +granted):\n%s", name, diff)
		}
	}
	var role rbacv1.Role
	one(t, "Role", "hawser-operator", &role)
	want := []string{"coordination.k8s.io/leases create,delete,list", "coordination.k8s.io/leases@cilium-operator-resource-lock get,update"}
	if diff := cmp.Diff(want, granted(role.Rules, definitions)); diff != "" {
		t.Errorf("hawser-operator in its namespace (-want +granted):\n%s", diff)
	}
	role = rbacv1.Role{}
	one(t, "Role", "hawser-agent", &role)
	if diff := cmp.Diff([]string{"coordination.k8s.io/leases create"}, granted(role.Rules, definitions)); diff != "" {
		t.Errorf("hawser-agent in its namespace (-want +granted):\n%s", diff)
	}
}

// TestRightsOfManual: the operator is tested with the rights that its manual page names, so the
// manifests must grant these. They say by name which definitions it may change.
func TestRightsOfManual(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/user/hawser-operator.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	text, _, _ = strings.Cut(text, "\n---\n")
	var manual, ours rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte(text), &manual); err != nil {
		t.Fatal(err)
	}
	one(t, "ClusterRole", "hawser-operator", &ours)
	for i := range ours.Rules {
		ours.Rules[i].ResourceNames = nil
	}
	if diff := cmp.Diff(granted(manual.Rules, nil), granted(ours.Rules, nil)); diff != "" {
		t.Errorf("(-manual +manifests):\n%s", diff)
	}
}

// granted writes rules in the form of rights.
func granted(rules []rbacv1.PolicyRule, definitions []string) []string {
	verbs := map[string][]string{}
	for _, r := range rules {
		names := ""
		if len(r.ResourceNames) > 0 {
			names = "@" + strings.Join(r.ResourceNames, ",")
			if slices.Equal(r.ResourceNames, definitions) {
				names = "@definitions"
			}
		}
		for _, g := range r.APIGroups {
			for _, res := range r.Resources {
				verbs[g+"/"+res+names] = append(verbs[g+"/"+res+names], r.Verbs...)
			}
		}
		if len(r.NonResourceURLs) > 0 {
			verbs["URLs "+strings.Join(r.NonResourceURLs, ",")] = r.Verbs
		}
	}
	var out []string
	for what, list := range verbs {
		slices.Sort(list)
		out = append(out, what+" "+strings.Join(slices.Compact(list), ","))
	}
	slices.Sort(out)
	return out
}

// TestServer installs everything on a real API server and asks it about rights.
func TestServer(t *testing.T) {
	t.Parallel()
	k := kubeapi.Start(t)
	d, err := discovery.NewDiscoveryClientForConfig(k.Config)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(d)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(k.Config)
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	api := func(u *unstructured.Unstructured) dynamic.ResourceInterface {
		m, err := mapper.RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
		if err != nil {
			t.Fatal(err)
		}
		if m.Scope.Name() == meta.RESTScopeNameNamespace {
			return client.Resource(m.Resource).Namespace(u.GetNamespace())
		}
		return client.Resource(m.Resource)
	}
	for _, u := range objects(t, defaults) {
		if _, err := api(u).Create(t.Context(), u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
		}
	}
	for _, u := range objects(t, withHubble) {
		data, err := u.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := api(u).Patch(t.Context(), u.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
			FieldManager: "test", Force: new(true), FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll},
		}); err != nil {
			t.Errorf("with flows: %s %s: %v", u.GetKind(), u.GetName(), err)
		}
	}
	kube, err := kubernetes.NewForConfig(k.Config)
	if err != nil {
		t.Fatal(err)
	}
	type access = authorizationv1.ResourceAttributes
	for _, tt := range []struct {
		who  string
		what access
		want bool
	}{
		{"hawser-agent", access{Verb: "watch", Resource: "pods"}, true},
		{"hawser-agent", access{Verb: "create", Group: "cilium.io", Resource: "ciliumidentities"}, true},
		{"hawser-agent", access{Verb: "patch", Group: "cilium.io", Resource: "ciliumendpoints", Namespace: "shop"}, true},
		{"hawser-agent", access{Verb: "delete", Group: "cilium.io", Resource: "ciliumidentities"}, false},
		{"hawser-agent", access{Verb: "deletecollection", Group: "cilium.io", Resource: "ciliumidentities"}, false},
		{"hawser-agent", access{Verb: "get", Resource: "secrets", Namespace: "kube-system"}, false},
		{"hawser-agent", access{Verb: "patch", Resource: "nodes"}, false},
		{"hawser-agent", access{Verb: "create", Resource: "pods", Subresource: "exec"}, false},
		{"hawser-agent", access{Verb: "update", Group: "cilium.io", Resource: "ciliumnetworkpolicies"}, false},
		{"hawser-operator", access{Verb: "patch", Resource: "nodes", Subresource: "status"}, true},
		{"hawser-operator", access{Verb: "update", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Name: "ciliumnodes.cilium.io"}, true},
		{"hawser-operator", access{Verb: "update", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Name: "gateways.gateway.networking.k8s.io"}, false},
		{"hawser-operator", access{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system", Name: "cilium-operator-resource-lock"}, true},
		{"hawser-operator", access{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system", Name: "kube-scheduler"}, false},
		{"hawser-operator", access{Verb: "patch", Group: "policy.networking.k8s.io", Resource: "clusternetworkpolicies", Subresource: "status"}, true},
		{"hawser-operator", access{Verb: "patch", Group: "policy.networking.k8s.io", Resource: "clusternetworkpolicies"}, false},
		{"hawser-operator", access{Verb: "create", Group: "events.k8s.io", Resource: "events", Namespace: "shop"}, true},
		{"hawser-operator", access{Verb: "get", Resource: "secrets", Namespace: "kube-system"}, false},
		{"hawser-operator", access{Verb: "create", Resource: "pods", Namespace: "kube-system"}, false},
		{"hawser-operator", access{Verb: "escalate", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}, false},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: fmt.Sprintf("system:serviceaccount:kube-system:%s", tt.who), Groups: []string{"system:serviceaccounts", "system:authenticated"}, ResourceAttributes: &tt.what,
		}}
		got, err := kube.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Allowed != tt.want {
			t.Errorf("%s may %+v: %v, want %v", tt.who, tt.what, got.Status.Allowed, tt.want)
		}
	}
}
