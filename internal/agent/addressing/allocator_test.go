package addressing

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/internal/ipam"
)

// TestGiveWaits: a pod for which no address is free gets one as soon as another pod's is, and the
// error in the end only if there is none until then.
func TestGiveWaits(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for name, c := range map[string]struct {
		families ipam.Families
		after    time.Duration // 0 for never
		free     func(*ipam.IPAM)
		want     time.Duration // when it returns
		err      error
	}{
		"it is freed":        {ipam.IPv4, time.Second, func(m *ipam.IPAM) { _ = m.Free(v4) }, time.Second, nil},
		"it is released":     {ipam.IPv4, time.Second, func(m *ipam.IPAM) { _ = m.Release(v4, "") }, time.Second, nil},
		"its endpoint ends":  {ipam.IPv4, time.Second, func(m *ipam.IPAM) { m.FreeOf(v4, "a/b") }, time.Second, nil},
		"no object names it": {ipam.IPv6, time.Second, func(m *ipam.IPAM) { m.Forget(v6) }, time.Second, nil},
		"nothing says that one is free": {ipam.IPv4, time.Second, func(m *ipam.IPAM) {
			m.Refuse(errors.New("not now"))
			_ = m.Free(v4)
			time.AfterFunc(time.Second, func() { m.Refuse(nil) })
		}, assignWait, nil},
		"nothing moves":         {ipam.IPv4, 0, nil, assignWait, ipam.ErrExhausted},
		"one of both is free":   {ipam.Both, time.Second, func(m *ipam.IPAM) { m.Forget(v6) }, assignWait, ipam.ErrExhausted},
		"the confirmation ends": {ipam.IPv4, 0, nil, 5 * time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, err := ipam.New(ipam.Config{Assigned: ipam.Both, Expiration: 5 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				m.AssignAddresses(map[netip.Prefix]bool{single(v4): true, single(v6): true})
				m.Open()
				if !m.Reserve(v6, "a/gone", false) {
					t.Fatal("not reserved")
				}
				expires := c.err == nil && c.free == nil
				if _, err := m.AllocateNext(ipam.IPv4, "a/b", "", expires); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { _ = m.Run(ctx) }()
				if c.after > 0 {
					time.AfterFunc(c.after, func() { c.free(m) })
				}
				begun := time.Now()
				_, err = (&Allocator{IPAM: m, Node: "n1"}).Give(ctx, c.families, "a/c", ipam.Choice{}, false)
				if took := time.Since(begun); took != c.want || !errors.Is(err, c.err) {
					t.Errorf("after %v: %v; want %v after %v", took, err, c.err, c.want)
				}
			})
		})
	}
}
