package policies

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/policy"
)

// TestManyFaults: of a policy with thousands of faults and warnings the log has the first, once.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	client, err := k8s.New(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p, err := New(Defaults(), client, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	rule := &policy.Rule{}
	for i := range 5000 {
		rule.Warnings = append(rule.Warnings, fmt.Sprintf("a warning %d", i))
	}
	fault := errors.New(strings.Repeat("a fault\n", 5000))
	for range 3 {
		p.upsert(v2.KindNetworkPolicy, k8s.Key{Namespace: "a", Name: "b"}, []*policy.Rule{rule}, fault, nil)
	}
	for _, what := range []string{"a fault", "a warning"} {
		if n := strings.Count(log.String(), what); n == 0 || n > 20 {
			t.Errorf("the log has %q %d times", what, n)
		}
	}
	for _, more := range []string{"and 4991 more", "and 4990 more"} {
		if n := strings.Count(log.String(), more); n != 1 {
			t.Errorf("the log has %q %d times", more, n)
		}
	}
}
