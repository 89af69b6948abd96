package rounds

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMeter(t *testing.T) {
	t.Parallel()
	m := NewMeter()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	ctx, cancel := context.WithCancel(t.Context())
	var fault error
	round := m.Measure("things", func(context.Context) error {
		m.Removed("things", 2)
		return fault
	})
	began := time.Now()
	_ = round(ctx)
	fault = errors.New("no")
	if err := round(ctx); !errors.Is(err, fault) {
		t.Error(err)
	}
	cancel()
	_ = round(ctx) // what ctx ended says nothing
	for name, got := range map[string]float64{
		"success": testutil.ToFloat64(m.runs.WithLabelValues("things", "success")), "fail": testutil.ToFloat64(m.runs.WithLabelValues("things", "fail")),
	} {
		if got != 1 {
			t.Errorf("%s: %v rounds", name, got)
		}
	}
	if n := testutil.ToFloat64(m.removed.WithLabelValues("things")); n != 6 {
		t.Errorf("%v removed", n)
	}
	if at := testutil.ToFloat64(m.success.WithLabelValues("things")); at < float64(began.Unix())-1 || at > float64(time.Now().Unix())+1 {
		t.Errorf("the last success was at %v", at)
	}
	if _, err := reg.Gather(); err != nil {
		t.Error(err)
	}
	var none *Meter
	none.Removed("things", 1)
	if err := none.Measure("things", func(context.Context) error { return nil })(t.Context()); err != nil {
		t.Error(err)
	}
}
