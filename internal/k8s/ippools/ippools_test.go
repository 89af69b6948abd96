package ippools

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/ipam"
)

func object(name string, change func(*v2alpha1.CiliumPodIPPool)) *v2alpha1.CiliumPodIPPool {
	o := &v2alpha1.CiliumPodIPPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.IPv4 = &v2alpha1.IPv4PoolSpec{CIDRs: []string{"10.0.0.0/16"}, MaskSize: 24}
	o.Spec.IPv6 = &v2alpha1.IPv6PoolSpec{CIDRs: []string{"fd00::/104"}, MaskSize: 120}
	if change != nil {
		change(o)
	}
	return o
}

func TestRead(t *testing.T) {
	p, ignored, err := Read(object("p", func(o *v2alpha1.CiliumPodIPPool) {
		o.Spec.AllowFirstIP = true
		o.Spec.IPv4.CIDRs = append(o.Spec.IPv4.CIDRs, "10.2.0.1/16")
		o.Annotations = map[string]string{SkipMasqueradeAnnotation: "true"}
	}))
	if err != nil || ignored || !p.AllowFirst || p.AllowLast || !p.SkipMasquerade || p.IPv4.Bits != 24 || p.IPv6.Bits != 120 {
		t.Fatalf("%+v, %t, %v", p, ignored, err)
	}
	for text, want := range map[string]bool{
		"10.0.3.0/24": true, "10.2.255.0/24": true, "10.2.0.0/16": true, "10.2.0.0/15": false, "10.3.0.0/24": false, "fd00::100/120": true, "fd01::/120": false,
	} {
		if got := p.Covers(netip.MustParsePrefix(text)); got != want {
			t.Errorf("covers %s: %t, want %t", text, got, want)
		}
	}
	if _, ignored, err := Read(object("p", func(o *v2alpha1.CiliumPodIPPool) { o.Annotations = map[string]string{IgnoreAnnotation: "true"} })); err != nil || !ignored {
		t.Errorf("a pool to be ignored: %t, %v", ignored, err)
	}
	for fault, change := range map[string]func(*v2alpha1.CiliumPodIPPool){
		`"10.0.0.0" is not a CIDR`:         func(o *v2alpha1.CiliumPodIPPool) { o.Spec.IPv4.CIDRs = []string{"10.0.0.0"} },
		"fd00::/64 is of the other family": func(o *v2alpha1.CiliumPodIPPool) { o.Spec.IPv4.CIDRs = []string{"fd00::/64"} },
		"has no blocks of /12":             func(o *v2alpha1.CiliumPodIPPool) { o.Spec.IPv4.MaskSize = 12 },
		"10.0.4.0/22 overlaps":             func(o *v2alpha1.CiliumPodIPPool) { o.Spec.IPv4.CIDRs = []string{"10.0.0.0/16", "10.0.4.0/22"} },
		`"yes" is neither true nor false`:  func(o *v2alpha1.CiliumPodIPPool) { o.Annotations = map[string]string{IgnoreAnnotation: "yes"} },
		`"Near" is not a valid label selector operator`: func(o *v2alpha1.CiliumPodIPPool) {
			o.Spec.PodSelector = &v2.LabelSelector{MatchExpressions: []v2.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
		},
	} {
		if _, _, err := Read(object("p", change)); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%v; want %s", err, fault)
		}
	}
}

// TestFault: a pool whose ranges are invalid stays as it was, or is not known; an annotation or a
// selector that is invalid takes no range away.
func TestFault(t *testing.T) {
	t.Parallel()
	p := New(nil, func() {}, slog.New(slog.DiscardHandler))
	good := func(o *v2alpha1.CiliumPodIPPool) {
		o.Annotations = map[string]string{SkipMasqueradeAnnotation: "true"}
		o.Spec.PodSelector = &v2.LabelSelector{MatchLabels: map[string]v2.LabelValue{"app": "a"}}
	}
	ranges := func(o *v2alpha1.CiliumPodIPPool) { o.Spec.IPv4.MaskSize = 12 }
	others := func(o *v2alpha1.CiliumPodIPPool) {
		o.Annotations = map[string]string{SkipMasqueradeAnnotation: "yes"}
		o.Spec.PodSelector = &v2.LabelSelector{MatchExpressions: []v2.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
		o.Spec.NamespaceSelector = &v2.LabelSelector{}
		o.Spec.IPv4.CIDRs = []string{"10.9.0.0/16"}
	}
	is := func(when string, cidr string, faulty, plain, selects bool) {
		t.Helper()
		got, ok, _ := p.Get("p")
		if !ok || (got.Fault != nil) != faulty || got.Covers(netip.MustParsePrefix(cidr)) == faulty || got.SkipMasquerade != plain || got.selects(map[string]string{"app": "a"}, nil) != selects {
			t.Errorf("%s: %+v", when, got)
		}
	}
	p.observe(object("p", ranges))
	is("never good", "10.0.0.0/24", true, false, false)
	p.observe(object("p", others))
	is("with good ranges", "10.9.0.0/24", false, false, false)
	p.observe(object("p", good))
	is("good", "10.0.0.0/24", false, true, true)
	p.observe(object("p", others))
	is("with other ranges", "10.9.0.0/24", false, true, true)
	p.observe(object("p", ranges))
	is("without good ranges", "10.9.0.0/24", false, true, true)
}

func TestChoose(t *testing.T) {
	read := func(o *v2alpha1.CiliumPodIPPool) Pool {
		p, _, err := Read(o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	selects := func(pod, namespace map[string]v2.LabelValue) func(*v2alpha1.CiliumPodIPPool) {
		return func(o *v2alpha1.CiliumPodIPPool) {
			if pod != nil {
				o.Spec.PodSelector = &v2.LabelSelector{MatchLabels: pod}
			}
			if namespace != nil {
				o.Spec.NamespaceSelector = &v2.LabelSelector{MatchLabels: namespace}
			}
		}
	}
	pools := []Pool{
		read(object("blue", nil)),
		read(object("default", nil)),
		read(object("four", func(o *v2alpha1.CiliumPodIPPool) {
			selects(map[string]v2.LabelValue{"app": "four"}, nil)(o)
			o.Spec.IPv6 = nil
		})),
		read(object("red", selects(map[string]v2.LabelValue{"k8s:app": "red"}, map[string]v2.LabelValue{"team": "a"}))),
		read(object("team", selects(nil, map[string]v2.LabelValue{"team": "a"}))),
	}
	type m = map[string]string
	for _, c := range []struct {
		name   string
		pod    Pod
		v4, v6 string
		err    error
	}{
		{"nothing said", Pod{}, "default", "default", nil},
		{"the pod asks", Pod{Annotations: m{PoolAnnotation: "blue"}, NamespaceAnnotations: m{PoolAnnotation: "red"}}, "blue", "blue", nil},
		{"its namespace asks", Pod{NamespaceAnnotations: m{PoolAnnotation: "red"}}, "red", "red", nil},
		{"for a family", Pod{Annotations: m{IPv6PoolAnnotation: "red"}, NamespaceAnnotations: m{PoolAnnotation: "blue"}}, "blue", "red", nil},
		{"for a family and for both", Pod{Annotations: m{IPv4PoolAnnotation: "red", PoolAnnotation: "blue"}}, "red", "blue", nil},
		{"selected", Pod{Labels: m{"app": "red"}, NamespaceLabels: m{"team": "a"}}, "red", "red", nil},
		{"selected by the namespace", Pod{Labels: m{"app": "x"}, NamespaceLabels: m{"team": "a"}}, "team", "team", nil},
		{"selected in part", Pod{Labels: m{"app": "red"}}, "default", "default", nil},
		{"selected by one that has one family", Pod{Labels: m{"app": "four"}}, "four", "default", nil},
		{"asked before selected", Pod{Annotations: m{PoolAnnotation: "blue"}, NamespaceLabels: m{"team": "a"}}, "blue", "blue", nil},
		{"required, and selected", Pod{Annotations: m{RequireAnnotation: "true"}, NamespaceLabels: m{"team": "a"}}, "team", "team", nil},
		{"required", Pod{Annotations: m{RequireAnnotation: "true"}}, "", "", ErrNoMatch},
		{"required by the namespace", Pod{NamespaceAnnotations: m{RequireAnnotation: "true"}}, "", "", ErrNoMatch},
		{"required for one family", Pod{Annotations: m{RequireAnnotation: "true", IPv4PoolAnnotation: "blue"}}, "blue", "", ErrNoMatch},
		{"required by the namespace, not by the pod", Pod{Annotations: m{RequireAnnotation: "false"}, NamespaceAnnotations: m{RequireAnnotation: "true"}}, "default", "default", nil},
		{"required?", Pod{Annotations: m{RequireAnnotation: "maybe"}}, "", "", ErrNoMatch},
		{"one that is not there", Pod{Annotations: m{PoolAnnotation: "green"}}, "green", "", ErrUnknown},
	} {
		got, err := Choose(c.pod, pools, "default", ipam.Both)
		if !errors.Is(err, c.err) || err == nil && (got.IPv4 != c.v4 || got.IPv6 != c.v6) {
			t.Errorf("%s: %+v, %v; want %q, %q, %v", c.name, got, err, c.v4, c.v6, c.err)
		}
	}
	// A pod that a pool selects of which it is not known what it has waits for that pool: with an
	// address of another one, firewalls might let it do more.
	broken, _, err := Read(object("green", func(o *v2alpha1.CiliumPodIPPool) {
		selects(map[string]v2.LabelValue{"app": "green"}, nil)(o)
		o.Spec.IPv4.MaskSize = 12
	}))
	if err == nil {
		t.Fatal("a pool without blocks is read")
	}
	with := append(slices.Clone(pools), broken)
	if got, err := Choose(Pod{Labels: m{"app": "green"}}, with, "default", ipam.Both); err != nil || got != (ipam.Choice{IPv4: "green", IPv6: "green"}) {
		t.Errorf("a pod that an invalid pool selects is to have addresses of %+v, %v", got, err)
	}
	if got, err := Choose(Pod{Labels: m{"app": "x"}}, with, "default", ipam.Both); err != nil || got.IPv4 != "default" {
		t.Errorf("a pod of no pool is given %+v, %v", got, err)
	}
	// Where pods have one family, nothing is chosen, and nothing required, for the other.
	for _, c := range []struct {
		pod      Pod
		families ipam.Families
		want     ipam.Choice
		err      error
	}{
		{Pod{Annotations: m{RequireAnnotation: "true"}, Labels: m{"app": "four"}}, ipam.IPv4, ipam.Choice{IPv4: "four"}, nil},
		{Pod{Annotations: m{RequireAnnotation: "true"}, Labels: m{"app": "four"}}, ipam.IPv6, ipam.Choice{}, ErrNoMatch},
		{Pod{Annotations: m{RequireAnnotation: "true", IPv6PoolAnnotation: "blue"}}, ipam.IPv6, ipam.Choice{IPv6: "blue"}, nil},
		{Pod{Annotations: m{RequireAnnotation: "true", IPv6PoolAnnotation: "blue"}}, ipam.IPv4, ipam.Choice{}, ErrNoMatch},
		{Pod{}, ipam.IPv6, ipam.Choice{IPv6: "default"}, nil},
	} {
		if got, err := Choose(c.pod, pools, "default", c.families); !errors.Is(err, c.err) || got != c.want {
			t.Errorf("%v, %+v: %+v, %v; want %+v, %v", c.families, c.pod, got, err, c.want, c.err)
		}
	}
}
