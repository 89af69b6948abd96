package agent

import "testing"

func TestPortText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		port, bits int
		want       string
	}{{0, 0, "any"}, {80, 16, "80"}, {1024, 6, "1024-2047"}, {8080, 15, "8080-8081"}, {0, 1, "0-32767"}, {32768, 1, "32768-65535"}} {
		if got := portText(tt.port, tt.bits); got != tt.want {
			t.Errorf("portText(%d, %d) = %s, want %s", tt.port, tt.bits, got, tt.want)
		}
	}
}
