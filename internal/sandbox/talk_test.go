package sandbox

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPeers(t *testing.T) {
	t.Parallel()
	for _, who := range []string{worldName, "front", "api", "db"} {
		peers := demoPeers(who)
		if len(peers) == 0 {
			t.Errorf("%s has no peers", who)
		}
		for _, p := range peers {
			if got, err := parsePeer(p.String()); err != nil || got != p {
				t.Errorf("%v is read as %v: %v", p, got, err)
			}
		}
	}
	for _, bad := range []string{"", "tcp", "tcp:api-1", "tcp::80", "tcp:api-1:0", "tcp:api-1:65536", "icmp:api-1:80", "tcp:a:b:80"} {
		if p, err := parsePeer(bad); err == nil {
			t.Errorf("%q is read as %v", bad, p)
		}
	}
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte("# names\n127.0.0.1 localhost\n10.0.0.1 api-1\nfd00::1 api-1\nnonsense api-1\n10.0.0.2 api-10\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"10.0.0.1", "fd00::1"}
	if diff := cmp.Diff(want, texts(lookup(file, "api-1"))); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if got := lookup(file+".gone", "api-1"); got != nil {
		t.Errorf("without a file there are %v", got)
	}
}

func texts(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}
