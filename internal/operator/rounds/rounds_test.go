package rounds

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEvery(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, tt := range []struct {
		name     string
		interval time.Duration
		takes    time.Duration
		fails    []bool // of each round; the last one for all that follow
		triggers []time.Duration
		want     []time.Duration // when rounds begin
	}{
		{"from start to start", 60 * s, 10 * s, []bool{false}, nil, []time.Duration{0, 60 * s, 120 * s}},
		{"longer than the interval", 10 * s, 25 * s, []bool{false}, nil, []time.Duration{0, 25 * s, 50 * s}},
		{"sooner after a failure", 60 * s, 0, []bool{true}, nil, []time.Duration{0, 5 * s, 15 * s, 35 * s, 75 * s, 135 * s}},
		{"and as before after a success", 60 * s, 0, []bool{true, true, false, true, false}, nil, []time.Duration{0, 5 * s, 15 * s, 75 * s, 80 * s, 140 * s}},
		{"never sooner than a second", 3 * s, 0, []bool{true}, nil, []time.Duration{0, 1 * s, 3 * s, 6 * s}},
		{"triggered", 60 * s, 0, []bool{false}, []time.Duration{20 * s}, []time.Duration{0, 20 * s, 80 * s}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began := time.Now()
				trigger := make(chan struct{})
				for _, at := range tt.triggers {
					go func() {
						time.Sleep(at)
						trigger <- struct{}{}
					}()
				}
				var got []time.Duration
				err := Every(ctx, tt.interval, trigger, func(context.Context) error {
					got = append(got, time.Since(began))
					if len(got) == len(tt.want) {
						cancel()
						return nil
					}
					time.Sleep(tt.takes)
					if tt.fails[min(len(got)-1, len(tt.fails)-1)] {
						return errors.New("a failure")
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("rounds begin at (-want +got):\n%s", diff)
				}
			})
		})
	}
}
