package netdump

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestList(t *testing.T) {
	t.Parallel()
	other := errors.New("other")
	for _, tt := range []struct {
		name  string
		fails []error // of the first listings; later ones are complete
		calls int
		err   error
	}{
		{"complete", nil, 1, nil},
		{"interrupted once", []error{netlink.ErrDumpInterrupted}, 2, nil},
		{"interrupted always", slices.Repeat([]error{netlink.ErrDumpInterrupted}, attempts), attempts, netlink.ErrDumpInterrupted},
		{"another error", []error{other, nil}, 1, other},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			all, err := List(func() ([]int, error) {
				calls++
				if calls <= len(tt.fails) {
					return []int{calls}, tt.fails[calls-1]
				}
				return []int{calls}, nil
			})
			if calls != tt.calls || !errors.Is(err, tt.err) || !slices.Equal(all, []int{calls}) {
				t.Errorf("%d listings, %v, %v; want %d and %v", calls, all, err, tt.calls, tt.err)
			}
		})
	}
}
