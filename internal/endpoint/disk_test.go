package endpoint_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	. "github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestDiskFull: on a disk that is full or read-only no endpoint is made, which leaves nothing
// behind and names the file; those that are there stay, also over a restart; and with room
// endpoints are made again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		spoil, mend func(*testenv.SmallDisk)
		want        error
	}{
		{"full", (*testenv.SmallDisk).Fill, (*testenv.SmallDisk).Free, unix.ENOSPC},
		{"read-only", (*testenv.SmallDisk).ReadOnly, (*testenv.SmallDisk).Writable, unix.EROFS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			disk, m := testenv.NewSmallDisk(t), newMachine()
			p := started(t, m, disk.Path)
			first := p.mustCreate(1)
			tt.spoil(disk)
			for range 2 {
				req := p.plug(2)
				if _, err := p.Create(t.Context(), req); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), disk.Path) {
					t.Errorf("the creation said %v", err)
				}
				for _, ip := range req.Addresses() {
					fakeAddresses{m}.Free(ip)
				}
			}
			if err := p.policy.Retry(); err != nil {
				t.Error(err)
			}
			if _, err := p.SetAudit(t.Context(), first.ID, AuditEnabled); !errors.Is(err, tt.want) {
				t.Errorf("the change of a mode said %v", err)
			}
			p.audit("a creation failed")
			p = started(t, m, disk.Path)
			if list := p.registry.List(); len(list) != 1 || list[0].ID != first.ID || list[0].IfName != first.IfName {
				t.Errorf("after a restart there are %+v", list)
			}
			p.audit("restarted")
			tt.mend(disk)
			p.mustCreate(2)
			p.audit("with room")
			p = started(t, m, disk.Path)
			if n := len(p.registry.List()); n != 2 {
				t.Errorf("after a restart with room there are %d endpoints", n)
			}
			p.audit("restarted with room")
		})
	}
}
