package labels

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKeys(t *testing.T) {
	ab, bc := KeysOf("b", "a", "b"), KeysOf("c", "b")
	if got := ab.String(); got != "a\nb" {
		t.Errorf("KeysOf: %q", got)
	}
	for _, c := range []struct {
		name      string
		got, want Keys
	}{
		{"union", ab.Union(bc), KeysOf("a", "b", "c")},
		{"union with all", ab.Union(AllKeys()), AllKeys()},
		{"intersection", ab.Intersect(bc), KeysOf("b")},
		{"intersection with all", ab.Intersect(AllKeys()), ab},
		{"intersection of all", AllKeys().Intersect(ab), ab},
		{"intersection with none", ab.Intersect(Keys{}), Keys{}},
	} {
		if !c.got.Equal(c.want) {
			t.Errorf("%s: %q, want %q", c.name, c.got, c.want)
		}
	}
	for _, c := range []struct {
		k, o Keys
		want bool
	}{
		{ab, KeysOf("a"), true}, {ab, bc, false}, {ab, Keys{}, true}, {Keys{}, ab, false}, {AllKeys(), ab, true}, {ab, AllKeys(), false}, {AllKeys(), AllKeys(), true},
	} {
		if got := c.k.Covers(c.o); got != c.want {
			t.Errorf("%q covers %q: %v", c.k, c.o, got)
		}
	}
	if AllKeys().Equal(Keys{}) || !AllKeys().Has("x") || ab.Has("x") || !ab.Has("b") {
		t.Error("all keys are not the same as none")
	}
}

func TestParseKeys(t *testing.T) {
	for _, k := range []Keys{{}, KeysOf("a"), KeysOf("app", "io.cilium.k8s.namespace.labels.team"), AllKeys()} {
		if got, err := ParseKeys(k.String()); err != nil || !got.Equal(k) {
			t.Errorf("%q: %q, %v", k, got, err)
		}
	}
	if _, err := ParseKeys("good\nb=ad"); err == nil || !strings.Contains(err.Error(), `"b=ad"`) {
		t.Errorf("a bad key: %v", err)
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add("a\nb")
	f.Add("*")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseKeys(text)
		if err != nil {
			return
		}
		if again, err := ParseKeys(k.String()); err != nil || !again.Equal(k) {
			t.Errorf("%q became %q, and that %q: %v", text, k, again, err)
		}
	})
}

func TestNarrow(t *testing.T) {
	set := NewSet(
		New(SourceK8s, "app", "web"), New(SourceK8s, "tier", "front"), New(SourceK8s, "pod-template-hash", "1"),
		New(SourceK8s, KeyNamespace, "default"), New(SourceK8s, KeyCluster, "one"), New(SourceK8s, KeyServiceAccount, "sa"),
		New(SourceK8s, KeyNamespaceLabels+".team", "red"), New(SourceK8s, KeyFixedIdentity, "store"), Reserved("host"),
	)
	always := []string{"k8s:io.cilium.fixed-identity=store", "k8s:io.cilium.k8s.policy.cluster=one", "k8s:io.cilium.k8s.policy.serviceaccount=sa",
		"k8s:io.kubernetes.pod.namespace=default", "reserved:host"}
	for _, c := range []struct {
		name string
		keys Keys
		want []string
	}{
		{"none", Keys{}, always},
		{"a pod's", KeysOf("app"), append([]string{"k8s:app=web"}, always...)},
		{"a namespace's", KeysOf(KeyNamespaceLabels + ".team"), append([]string{"k8s:io.cilium.k8s.namespace.labels.team=red"}, always...)},
		// What the rules leave out stays out, whoever selects it.
		{"one that is never part of an identity", KeysOf("pod-template-hash"), always},
	} {
		identity, info := DefaultFilter().Narrow(c.keys).Split(set)
		want, err := ParseSet(c.want)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, identity); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
		if len(identity)+len(info) != len(set) {
			t.Errorf("%s: labels were lost: %s and %s of %s", c.name, identity, info, set)
		}
	}
	bare := NewSet(New(SourceK8s, "app", "web"))
	if got, _ := DefaultFilter().Narrow(Keys{}).Split(bare); !got.Equal(bare) {
		t.Errorf("nothing is left of %s: %s", bare, got)
	}
	all, _ := DefaultFilter().Split(set)
	if got, _ := DefaultFilter().Narrow(KeysOf("app")).Narrow(AllKeys()).Split(set); !got.Equal(all) {
		t.Errorf("all keys: %s, want %s", got, all)
	}
}
