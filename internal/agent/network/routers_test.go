package network

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestAddressFileOnReadOnlyDisk has an agent start again where nothing can be written.
func TestAddressFileOnReadOnlyDisk(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	d := testenv.NewSmallDisk(t)
	write := func(path string, data []byte) error { return atomicfile.Write(path, data, 0o600, atomicfile.Process) }
	f := AddressFile{Path: filepath.Join(d.Path, "router.json"), Write: write}
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	if err := f.Save(v4, v6); err != nil {
		t.Fatal(err)
	}
	d.ReadOnly()
	if err := f.Save(v4, v6); err != nil {
		t.Errorf("addresses that the file has: %v", err)
	}
	if err := f.Save(v4, v4.Next()); err == nil {
		t.Error("other addresses are stored on a disk that is read-only")
	}
	if got := f.Load(slog.New(slog.DiscardHandler)); !slices.Equal(got, []netip.Addr{v4, v6}) {
		t.Errorf("the file has %v", got)
	}
}
