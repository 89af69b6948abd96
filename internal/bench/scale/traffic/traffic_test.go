package traffic

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/bench/scale/report"
)

func TestTraffic(t *testing.T) {
	t.Parallel()
	const before = `# TYPE apiserver_request_total counter
apiserver_request_total{code="201",resource="ciliumidentities",verb="POST"} 5
apiserver_request_total{code="409",resource="ciliumidentities",verb="POST"} 2
apiserver_request_total{code="200",resource="",verb="GET"} 9
`
	const after = `# TYPE apiserver_request_total counter
apiserver_request_total{code="201",resource="ciliumidentities",verb="POST"} 6
apiserver_request_total{code="409",resource="ciliumidentities",verb="POST"} 5
apiserver_request_total{code="200",resource="ciliumidentities",verb="GET"} 3
apiserver_request_total{code="200",resource="ciliumidentities",verb="WATCH"} 7
apiserver_request_total{code="200",resource="pods",verb="PATCH"} 4
# TYPE apiserver_watch_events_total counter
apiserver_watch_events_total{group="cilium.io",resource="ciliumidentities",version="v2"} 8
# TYPE apiserver_watch_events_sizes histogram
apiserver_watch_events_sizes_bucket{resource="ciliumidentities",le="+Inf"} 8
apiserver_watch_events_sizes_sum{resource="ciliumidentities"} 4096
apiserver_watch_events_sizes_count{resource="ciliumidentities"} 8
`
	a, err := Parse([]byte(before))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse([]byte(after))
	if err != nil {
		t.Fatal(err)
	}
	did := b.Since(a)
	if diff := cmp.Diff([]report.Call{
		{Verb: "CREATE", Resource: "ciliumidentities", Count: 4, Refused: 3}, {Verb: "GET", Resource: "ciliumidentities", Count: 3},
	}, did.CustomResources()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if n := did.Sum("ciliumidentities"); n != 7 {
		t.Errorf("%g calls for identities, want 7", n)
	}
	if all, some := did.Writes(), did.Writes("pods"); all != 8 || some != 4 {
		t.Errorf("%g writes, %g of pods, want 8 and 4", all, some)
	}
	if did.Events["ciliumidentities"] != 8 || did.Bytes["ciliumidentities"] != 4096 {
		t.Errorf("watched: %v, %v", did.Events, did.Bytes)
	}
	if _, err := Parse([]byte("{")); err == nil {
		t.Error("nonsense is metrics")
	}
}
