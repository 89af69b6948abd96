package relevance

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-net/hawser/internal/labels"
)

func TestState(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]State{
		"everything": Everything(), "nothing": {Generation: 1},
		"some": {Generation: 7, Keys: labels.KeysOf("app", "tier"), Ready: labels.KeysOf("app"), Endpoints: 1, Slices: 2, Identities: 1 << 60},
	} {
		var o corev1.ConfigMap
		s.Fill(&o)
		got, err := Read(&o)
		if err != nil || got.Generation != s.Generation || !got.Keys.Equal(s.Keys) || !got.Ready.Equal(s.Ready) ||
			got.Endpoints != s.Endpoints || got.Slices != s.Slices || got.Identities != s.Identities {
			t.Errorf("%s: %+v became %+v: %v", name, s, got, err)
		}
	}
	for name, c := range map[string]struct {
		change func(map[string]string)
		want   string
	}{
		"no number":              {func(d map[string]string) { d["generation"] = "x" }, `entry "generation"`},
		"no keys":                {func(d map[string]string) { delete(d, "keys") }, `entry "keys": is missing`},
		"a bad key":              {func(d map[string]string) { d["ready"] = "a=b" }, `entry "ready"`},
		"ready, but not made by": {func(d map[string]string) { d["ready"] = "app\nother" }, `keys that are not in "keys"`},
	} {
		o := corev1.ConfigMap{}
		State{Generation: 1, Keys: labels.KeysOf("app"), Ready: labels.KeysOf("app")}.Fill(&o)
		c.change(o.Data)
		if got, err := Read(&o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestAnswer(t *testing.T) {
	t.Parallel()
	for _, node := range []string{"n1", strings.Repeat("long.", 50)} {
		o := Answer{Made: 12, Enforced: 11}.Lease("ns", node)
		if got, a := ReadLease(o); got != node || a != (Answer{Made: 12, Enforced: 11}) || len(o.Name) > maxName || !strings.HasSuffix(o.Name, ".12.11") {
			t.Errorf("%s: %s %+v, named %s", node, got, a, o.Name)
		}
	}
	if got := (Answer{Made: 3, Enforced: 1}).Join(Answer{Made: 2, Enforced: 2}); got != (Answer{Made: 3, Enforced: 2}) {
		t.Errorf("joined: %+v", got)
	}
	bad := Answer{Made: 1}.Lease("ns", "n1")
	bad.Annotations[madeAnnotation] = "many"
	if _, a := ReadLease(bad); a != (Answer{}) {
		t.Errorf("what cannot be read says %+v", a)
	}
}
