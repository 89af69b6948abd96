package endpoint_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	. "github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestDiskFull: on a disk that is full or read-only no endpoint is made, which leaves nothing
// behind and names the file; those that are there stay, also over a restart, and other labels of
// theirs are in force at once; and with room endpoints are made again, and recorded.
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
			first, gone := p.mustCreate(1), p.mustCreate(3)
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
			if list := p.registry.List(); len(list) != 2 || list[0].ID != first.ID || list[0].IfName != first.IfName {
				t.Errorf("after a restart there are %+v", list)
			}
			p.audit("restarted")
			// Twice: what is tried again must not put the kernel back in between.
			other := labels.NewSet(labels.New(labels.SourceK8s, "app", "other"))
			m.writes = nil
			for range 2 {
				row, err := p.SetWorkload(t.Context(), first.ID, other, nil)
				if err != nil || row.State != StateReady || row.Identity == first.Identity || m.row(first).Identity != uint32(row.Identity) {
					t.Errorf("with other labels the endpoint is %s with %s, the kernel has %d: %v", row.State, row.Identity, m.row(first).Identity, err)
				}
			}
			rows := 0
			for _, w := range m.writes {
				if strings.HasPrefix(w, "endpoint ") {
					rows++
				}
			}
			if rows != 1 {
				t.Errorf("the kernel's row was written %d times: %q", rows, m.writes)
			}
			if err := p.Save(); !errors.Is(err, tt.want) {
				t.Errorf("that the record could not be written is reported as %v", err)
			}
			// The interface of a pod goes, and the record cannot.
			m.kernel.Links.RemoveLink(gone.IfIndex)
			p = started(t, m, disk.Path)
			if list := p.registry.List(); len(list) != 1 || list[0].ID != first.ID {
				t.Errorf("after the interface went there are %+v", list)
			}
			if _, err := p.SetWorkload(t.Context(), first.ID, other, nil); err != nil {
				t.Error(err)
			}
			tt.mend(disk)
			if err := p.Save(); err != nil {
				t.Error(err)
			}
			p.audit("recorded with room")
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
