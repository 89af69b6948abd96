package policies

import (
	"fmt"
	"testing"
)

// FuzzParseKept: whatever is on disk, reading it ends well, and what is accepted has a name.
func FuzzParseKept(f *testing.F) {
	for _, o := range []struct{ kind, text string }{
		{KindKubernetes, `{"metadata":{"name":"a","namespace":"b"},"spec":{"podSelector":{}}}`},
		{"CiliumNetworkPolicy", `{"metadata":{"name":"a","namespace":"b"},"spec":{"endpointSelector":{},"ingress":[{}]}}`},
		{"CiliumClusterwideNetworkPolicy", `{"metadata":{"name":"a"},"spec":{"endpointSelector":{}}}`},
		{"Other", `{}`}, {"", `null`},
	} {
		f.Add(o.kind, []byte(o.text), true)
		f.Add(o.kind, []byte(o.text), false)
	}
	f.Fuzz(func(t *testing.T, kind string, object []byte, whole bool) {
		text := append(fmt.Appendf(nil, "%s %x %s\n", keptFormat, keptSum(kind, object), kind), object...)
		if !whole {
			text = object
		}
		p, _, err := parseKept(text)
		if err == nil && (!whole || p.key.Name == "" || len(p.rules) == 0) {
			t.Errorf("%q of kind %q became %+v", object, kind, p)
		}
	})
}
