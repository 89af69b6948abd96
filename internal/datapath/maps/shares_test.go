package maps

import "testing"

// TestPodShare: endpoints together have at most half of the table, however many of them take what
// they can.
func TestPodShare(t *testing.T) {
	const size = 262144
	counts := func(pods, each int) map[uint16]int {
		m := map[uint16]int{0: size}
		for i := range pods {
			m[uint16(i+1)] = each
		}
		return m
	}
	for _, row := range []struct{ pods, each, want int }{
		{0, 0, size / 8}, {1, size, size / 8}, {4, size, size / 8}, {5, size, size / 16}, {16, size, size / 32}, {100, 100, size / 8},
		{4096, size, size / podFloor},
	} {
		if got := podShare(counts(row.pods, row.each), size); got != row.want {
			t.Errorf("%d pods with %d entries each: share %d, want %d", row.pods, row.each, got, row.want)
		}
	}
}

func TestNodeShare(t *testing.T) {
	const size = 262144
	for pods, want := range map[int]int{0: size / 8 * 7, 1: size / 4, 200: size / 4} {
		if got := nodeShare(size, pods); got != want {
			t.Errorf("%d pods: share %d, want %d", pods, got, want)
		}
	}
}
