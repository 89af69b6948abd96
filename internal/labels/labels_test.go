package labels

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   string
		want Label
		bad  bool
	}{
		{in: "k8s:app=web", want: Label{"k8s", "app", "web"}},
		{in: "app=web", want: Label{"unspec", "app", "web"}},
		{in: "app", want: Label{"unspec", "app", ""}},
		{in: ":app", want: Label{"unspec", "app", ""}},
		{in: "reserved:host", want: Label{"reserved", "host", ""}},
		{in: "k8s:a.b/c:d=e=f:g", want: Label{"k8s", "a.b/c:d", "e=f:g"}},
		{in: "cidr:2001-db8--0/32", want: Label{"cidr", "2001-db8--0/32", ""}},
		// What looks like a reserved label stays a label of its source.
		{in: "k8s:reserved:host", want: Label{"k8s", "reserved:host", ""}},
		{in: "app=reserved:host", want: Label{"unspec", "app", "reserved:host"}},
		{in: "", bad: true},
		{in: "=x", bad: true},
		{in: "k8s:", bad: true},
		{in: "k8s:a=b;k8s:c=d", bad: true},
		{in: "k8s:a;b", bad: true},
		{in: "k8s:a b", bad: true},
		{in: "k8s:a=b\nc", bad: true},
		{in: "k8s:ä=b", bad: true},
		{in: strings.Repeat("x", MaxKeyLen+1), bad: true},
		{in: "a=" + strings.Repeat("x", MaxValueLen+1), bad: true},
	}
	for _, tt := range tests {
		got, err := Parse(tt.in)
		if (err != nil) != tt.bad || got != tt.want {
			t.Errorf("Parse(%.40q) = %+v, %v; want %+v, error %v", tt.in, got, err, tt.want, tt.bad)
		}
	}
}

func TestNewSet(t *testing.T) {
	t.Parallel()
	got := NewSet(New("k8s", "b", "1"), New("k8s", "a", "1"), Reserved("host"), New("k8s", "host", "x"), New("k8s", "a", "2"))
	want := Set{{"k8s", "a", "2"}, {"k8s", "b", "1"}, {"reserved", "host", ""}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if NewSet() != nil {
		t.Error("the empty set is not nil")
	}
	// A reserved label wins in any order.
	if s := NewSet(New("k8s", "host", "x"), Reserved("host")); s[0] != Reserved("host") {
		t.Errorf("got %v", s)
	}
}

func TestKVString(t *testing.T) {
	t.Parallel()
	set := NewSet(
		New("k8s", "io.kubernetes.pod.namespace", "ns"), New("k8s", "app", "a"),
		New("k8s", "io.cilium.k8s.policy.cluster", "default"), New("k8s", "empty", ""),
	)
	want := "k8s:app=a;k8s:empty=;k8s:io.cilium.k8s.policy.cluster=default;k8s:io.kubernetes.pod.namespace=ns;"
	if got := set.KVString(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	back, err := ParseKV(want)
	if err != nil || !back.Equal(set) {
		t.Errorf("comes back as %v, %v", back, err)
	}
	if s := (Set)(nil).KVString(); s != "" {
		t.Errorf("the empty set is %q", s)
	}
	for _, bad := range []string{"app=a;", "k8s:a=b;;k8s:c=d;", ";", "k8s:=x;", strings.Repeat("k8s:a=b;", MaxLabels+1), "k8s:a=b;k8s:a=c;", "k8s:a=b;k8s:c=d;any:a=b;"} {
		if s, err := ParseKV(bad); err == nil {
			t.Errorf("ParseKV(%.40q) = %v", bad, s)
		}
	}
}

func TestSetAccess(t *testing.T) {
	t.Parallel()
	for _, extra := range []int{0, 20} { // both ways of searching
		ls := []Label{New("k8s", "app", "web"), Reserved("host")}
		for i := range extra {
			ls = append(ls, New("k8s", "x"+string(rune('a'+i)), ""))
		}
		s := NewSet(ls...)
		if !s.Has("k8s", "app") || !s.Has(SourceAny, "app") || s.Has("reserved", "app") || s.Has("k8s", "nope") {
			t.Error("Has is wrong")
		}
		if s.Value("k8s", "app") != "web" || s.Value("cni", "app") != "" || !s.HasReserved("host") || s.HasReserved("app") {
			t.Error("Value or HasReserved is wrong")
		}
		w := s.With(New("k8s", "app", "db")).Without(func(l Label) bool { return l.Source == SourceReserved })
		if w.Value("k8s", "app") != "db" || w.HasReserved("host") || s.Value("k8s", "app") != "web" || !s.HasReserved("host") {
			t.Error("With or Without is wrong, or changed the set")
		}
	}
	data, err := json.Marshal(NewSet(New("k8s", "a", "b"), Reserved("host")))
	if err != nil || string(data) != `["k8s:a=b","reserved:host"]` {
		t.Errorf("JSON is %s, %v", data, err)
	}
	var back Set
	if err := json.Unmarshal(data, &back); err != nil || len(back) != 2 {
		t.Errorf("JSON comes back as %v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`["k8s:"]`), &back); err == nil {
		t.Error("a broken label is accepted from JSON")
	}
}

func TestDefaultFilter(t *testing.T) {
	t.Parallel()
	f := DefaultFilter()
	tests := map[string]bool{
		"k8s:app=web":                                             true,
		"k8s:io.kubernetes.pod.namespace=ns":                      true,
		"k8s:io.kubernetes.other=x":                               false,
		"k8s:io.cilium.k8s.namespace.labels.team=red":             true,
		"k8s:io.cilium.k8s.policy.cluster=c":                      true,
		"k8s:io.cilium.k8s.policy.serviceaccount=sa":              true,
		"k8s:app.kubernetes.io/name=web":                          true,
		"k8s:kubernetes.io/hostname=n":                            false,
		"k8s:statefulset.kubernetes.io/pod-name=web-0":            false,
		"k8s:statefulset.kubernetes.io/other=x":                   true,
		"k8s:apps.kubernetes.io/pod-index=0":                      false,
		"k8s:batch.kubernetes.io/controller-uid=1":                false,
		"k8s:beta.kubernetes.io/arch=amd64":                       false,
		"k8s:failure-domain.beta.kubernetes.io/zone=z":            false,
		"k8s:k8s.io/x=y":                                          false,
		"k8s:pod-template-hash=1":                                 false,
		"k8s:controller-revision-hash=1":                          false,
		"k8s:annotation.foo=bar":                                  false,
		"k8s:annotations=bar":                                     false,
		"k8s:etcd_node=1":                                         false,
		"k8s:topology.kubernetes.io/zone=z":                       false,
		"k8s:my.pod-template-hash=1":                              true, // not from the first byte on
		"reserved:host":                                           true,
		"reserved:annotation.x":                                   false, // both match all of it, and a tie excludes
		"k8s:io.cilium.k8s.namespace.labels.kubernetes.io/name=x": true,
	}
	for s, want := range tests {
		l, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Identity(l); got != want {
			t.Errorf("%s is an identity label: %v, want %v", s, got, want)
		}
	}
}

func TestFilterRules(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		entries  []string
		file     string
		identity []string
		info     []string
	}{
		{
			name: "an inclusion leaves out what is not named", entries: []string{"k8s:app"},
			identity: []string{"k8s:app=web", "k8s:application=x", "reserved:host", "k8s:io.kubernetes.pod.namespace=ns"},
			info:     []string{"k8s:tier=f", "cni:app=web"},
		},
		{
			name: "an exclusion alone does not", entries: []string{"!tier"},
			identity: []string{"k8s:app=web"}, info: []string{"k8s:tier=f"},
		},
		{
			name: "the longer inclusion wins", entries: []string{"k8s:!tier", `tier\.a`},
			identity: []string{"k8s:tier.a=x", "reserved:host"}, info: []string{"k8s:tier=f", "k8s:tier.b=f", "k8s:app=web"},
		},
		{
			name: "a file replaces the defaults", file: `{"version":1,"valid-prefixes":[{"prefix":"app","source":"k8s"},{"prefix":"app.x","invert":true}]}`,
			identity: []string{"k8s:app=web"}, info: []string{"k8s:app.x=1", "cni:app=1", "reserved:host", "k8s:io.kubernetes.pod.namespace=ns"},
		},
		{
			name: "the prefixes of a file are text", file: `{"version":1,"valid-prefixes":[{"prefix":"a.c"}]}`,
			identity: []string{"k8s:a.cd=1"}, info: []string{"k8s:abc=1"},
		},
		{
			name: "entries are added to a file", file: `{"version":1,"valid-prefixes":[{"prefix":"app","invert":true}]}`, entries: []string{"reserved:.*"},
			identity: []string{"reserved:host"}, info: []string{"k8s:app=x", "k8s:tier=f"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var file []byte
			if tt.file != "" {
				file = []byte(tt.file)
			}
			f, err := NewFilter(tt.entries, file)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range tt.identity {
				if l, err := Parse(text); err != nil || !f.Identity(l) {
					t.Errorf("%s is no identity label (%v)", text, err)
				}
			}
			for _, text := range tt.info {
				if l, err := Parse(text); err != nil || f.Identity(l) {
					t.Errorf("%s is an identity label (%v)", text, err)
				}
			}
			set, err := ParseSet(append(slices.Clone(tt.identity), tt.info...))
			if err != nil {
				t.Fatal(err)
			}
			if id, info := f.Split(set); len(id)+len(info) != len(set) {
				t.Errorf("%v is split into %v and %v", set, id, info)
			}
		})
	}
	for _, bad := range []string{"(", "!", "k8s:", "!k8s:app"} {
		if _, err := NewFilter([]string{bad}, nil); err == nil {
			t.Errorf("entry %q is accepted", bad)
		}
	}
	for _, bad := range []string{"", "{}", `{"version":2}`, `{"version":1,"valid-prefixes":[{}]}`} {
		if _, err := NewFilter(nil, []byte(bad)); err == nil {
			t.Errorf("file %q is accepted", bad)
		}
	}
}

// TestPodLabelsCannotBeForged: whatever labels a user puts on a pod, its namespace, service
// account, cluster, namespace labels and reserved labels are the network's.
func TestPodLabelsCannotBeForged(t *testing.T) {
	t.Parallel()
	got, err := PodLabels(Pod{
		Namespace: "mine", ServiceAccount: "me", Cluster: "here",
		Labels: map[string]string{
			"app":                                    "web",
			"io.kubernetes.pod.namespace":            "kube-system",
			"io.cilium.k8s.policy.serviceaccount":    "admin",
			"io.cilium.k8s.policy.cluster":           "other",
			"io.cilium.k8s.namespace.labels.team":    "root",
			"io.cilium.k8s.named-ports":              "x.TCP.1",
			"reserved:host":                          "",
			"k8s:io.kubernetes.pod.namespace":        "kube-system",
			"io.cilium.k8s.namespace.labels.another": "x",
		},
		NamespaceLabels: map[string]string{"team": "users"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"k8s:app=web",
		"k8s:io.cilium.k8s.namespace.labels.team=users",
		"k8s:io.cilium.k8s.policy.cluster=here",
		"k8s:io.cilium.k8s.policy.serviceaccount=me",
		"k8s:io.kubernetes.pod.namespace=mine",
		"k8s:k8s:io.kubernetes.pod.namespace=kube-system",
		"k8s:reserved:host",
	}
	if diff := cmp.Diff(want, got.Strings()); diff != "" {
		t.Error(diff)
	}
	if got.HasReserved("host") || got.Has(SourceReserved, "reserved:host") {
		t.Error("a pod has a reserved label")
	}
	back, err := ParseKV(got.KVString())
	if err != nil || !back.Equal(got) {
		t.Errorf("the canonical string does not come back: %v, %v", back, err)
	}
	// Without a service account the pod cannot supply one.
	got, err = PodLabels(Pod{Namespace: "ns", Labels: map[string]string{KeyServiceAccount: "admin", KeyCluster: "x"}})
	if err != nil || got.Has(SourceAny, KeyServiceAccount) || got.Has(SourceAny, KeyCluster) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []map[string]string{{"a;k8s:b": "c"}, {"a": "b;k8s:io.kubernetes.pod.namespace=x"}, {"": "x"}, {"a=b": "c"}} {
		if s, err := PodLabels(Pod{Namespace: "ns", Labels: bad}); err == nil {
			t.Errorf("%v is accepted as %v", bad, s)
		}
	}
}

// FuzzParseLabel: what is accepted comes back the same.
func FuzzParseLabel(f *testing.F) {
	for _, s := range []string{"k8s:app=web", "app", "reserved:host", "k8s:a:b=c=d", ";", "=", ":", "a=;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := Parse(s)
		if err != nil {
			return
		}
		back, err := Parse(l.String())
		if err != nil || back != l {
			t.Fatalf("%q is %+v, which comes back as %+v, %v", s, l, back, err)
		}
		set, err := ParseKV(NewSet(l).KVString())
		if err != nil || !set.Equal(NewSet(l)) {
			t.Fatalf("%q is %+v, whose canonical string comes back as %+v, %v", s, l, set, err)
		}
	})
}

// FuzzParseKV: a canonical string that is accepted is stable after one round.
func FuzzParseKV(f *testing.F) {
	for _, s := range []string{"k8s:app=a;k8s:io.kubernetes.pod.namespace=ns;", "reserved:host=;", "k8s:a=b", ";;", "x:y=z;x:y=w;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set, err := ParseKV(s)
		if err != nil {
			return
		}
		if err := set.Validate(); err != nil {
			t.Fatalf("%q is accepted, but not valid: %v", s, err)
		}
		again, err := ParseKV(set.KVString())
		if err != nil || !again.Equal(set) || again.KVString() != set.KVString() {
			t.Fatalf("%q is %v, then %v, %v", s, set, again, err)
		}
	})
}

// FuzzFilterFile: no label prefix file crashes the filter.
func FuzzFilterFile(f *testing.F) {
	f.Add([]byte(`{"version":1,"valid-prefixes":[{"prefix":"app","source":"k8s"}]}`), "reserved:.*", "app")
	f.Fuzz(func(t *testing.T, file []byte, entry, key string) {
		filter, err := NewFilter([]string{entry}, file)
		if err != nil {
			return
		}
		filter.Split(NewSet(New("k8s", key, "x"), Reserved("host")))
	})
}
