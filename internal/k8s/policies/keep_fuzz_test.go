package policies

import (
	"testing"

	"github.com/hawser-net/hawser/internal/diskcache"
)

// FuzzParseKept: whatever is on disk, reading it ends well, and what is accepted has a name.
func FuzzParseKept(f *testing.F) {
	for _, o := range []struct{ kind, text string }{
		{KindKubernetes, `{"metadata":{"name":"a","namespace":"b"},"spec":{"podSelector":{}}}`},
		{"CiliumNetworkPolicy", `{"metadata":{"name":"a","namespace":"b"},"spec":{"endpointSelector":{},"ingress":[{}]}}`},
		{"CiliumClusterwideNetworkPolicy", `{"metadata":{"name":"a"},"spec":{"endpointSelector":{}}}`},
		{"Other", `{}`}, {"", `null`},
	} {
		f.Add(o.kind, []byte(o.text))
	}
	f.Fuzz(func(t *testing.T, kind string, object []byte) {
		_, p, err := parseKept(diskcache.Copy{Label: kind, Content: object})
		if err == nil && (p.key.Name == "" || len(p.rules) == 0) {
			t.Errorf("%q of kind %q became %+v", object, kind, p)
		}
	})
}
