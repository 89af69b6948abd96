package endpoints_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
)

// TestTwoWriters is "Two CEP writing sources" and "Review discussion 2" of CFP-27752, from the
// agent's side.
func TestTwoWriters(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	e, err := endpoints.New(endpoints.Config{
		Hosts: []netip.Addr{netip.MustParseAddr(ownHost)}, Shared: true, Interval: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Accept: func(identity.ID) error { return nil },
	}, r.client, ipcache.New())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	pod := r.pod("team", "web")
	at := func(host uint16, id identity.ID) endpoints.Local {
		l := local(pod, host, id)
		l.Number = 7
		return l
	}
	// names waits until the object names an ID (0: none) and has an address, and goes on to for
	// a few comparisons.
	names := func(what string, id int64, ip string) {
		t.Helper()
		wrong := func() string {
			o, err := r.get("team", "web")
			switch {
			case err != nil:
				return err.Error()
			case (o.Status.Identity == nil) != (id == 0) || (id != 0 && o.Status.Identity.ID != id) || o.Status.Networking.Addressing[0].IPv4 != ip:
				return fmt.Sprintf("%s: the object says %+v, %+v; want %d, %s", what, o.Status.Identity, o.Status.Networking.Addressing[0], id, ip)
			}
			return ""
		}
		r.eventually(wrong)
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if w := wrong(); w != "" {
				t.Fatalf("it does not stay so: %s", w)
			}
		}
	}
	operator := func(id int) {
		t.Helper()
		body := []byte(fmt.Sprintf(`[{"op":"add","path":"/status/identity","value":{"id":%d,"labels":["k8s:app=web"]}}]`, id))
		if err := r.v2.Patch(types.JSONPatchType).Namespace("team").Resource(v2.ResourceEndpoints).Name("web").Body(body).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	e.Set(at(7, 0))
	names("a new pod whose identity is unknown", 0, "10.0.1.7")
	operator(500)
	names("the operator assigns one", 500, "10.0.1.7")
	e.Set(at(8, 0))
	names("another address, and the identity still unknown here", 500, "10.0.1.8")
	e.Set(at(8, 500))
	names("the same becomes known here", 500, "10.0.1.8")
	operator(600)
	names("the operator corrects it", 600, "10.0.1.8")
	e.Set(at(9, 500))
	names("the address changes again", 600, "10.0.1.9")
	e.Set(at(9, 700))
	names("labels change to those of a known identity", 700, "10.0.1.9")
	e.Set(at(9, 0))
	names("labels change to those of an unknown one", 700, "10.0.1.9")
	e.Set(at(9, 500))
	names("and back to the first", 500, "10.0.1.9")
	if err := r.v2.Patch(types.JSONPatchType).Namespace("team").Resource(v2.ResourceEndpoints).Name("web").
		Body([]byte(`[{"op":"remove","path":"/status/identity"}]`)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	names("a client removes it", 500, "10.0.1.9")
	r.delete("team", "web")
	names("a client deletes the object", 500, "10.0.1.9")
	operator(800)
	names("the operator corrects the new one", 800, "10.0.1.9")
}
