package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Services runs the suite for datapath.Services. open returns empty tables with room for room
// backends of all frontends together.
func Services(t *testing.T, room int, open func(t *testing.T) datapath.Services) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, datapath.Services){
		"Rows":       testServiceRows,
		"Invalid":    testServiceInvalid,
		"Concurrent": testServiceConcurrent,
		"Full":       func(t *testing.T, m datapath.Services) { testServiceFull(t, m, room) },
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func sameServices(t *testing.T, m datapath.Services, want ...datapath.Service) {
	t.Helper()
	less := func(a, b datapath.Service) int { return a.Compare(b.ServiceFrontend) }
	same(t, "services", less, want, func() ([]datapath.Service, error) {
		list, err := m.Services()
		for i := range list {
			if len(list[i].Backends) == 0 {
				list[i].Backends = nil
			}
			if len(list[i].Sources) == 0 {
				list[i].Sources = nil
			}
		}
		return list, err
	})
}

func service(addr string, proto uint8, backends int) datapath.Service {
	s := datapath.Service{ServiceFrontend: datapath.ServiceFrontend{Addr: netip.MustParseAddrPort(addr), Proto: proto}, ID: 5}
	for i := range backends {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		if s.Addr.Addr().Is6() {
			a = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)})
		}
		s.Backends = append(s.Backends, netip.AddrPortFrom(a, 8080))
	}
	return s
}

func testServiceRows(t *testing.T, m datapath.Services) {
	sameServices(t, m)
	one, two, three := service("10.96.0.1:443", 6, 3), service("[fd96::1]:443", 6, 2), service("10.96.0.1:443", 17, 0)
	outside := service("10.96.0.1:443", 6, 1)
	outside.Scope, outside.DSR = datapath.ServiceExternal, true
	two.Affinity = 3 * time.Hour
	two.LimitSources, two.Sources, two.Maglev = true, prefixes("::/0", "fd00::/8", "fd00::1/128"), true
	for range 2 { // writing twice is writing once
		for _, s := range []datapath.Service{one, two, three, outside} {
			must(t, m.UpsertService(s))
		}
		must(t, m.PruneServiceSets())
	}
	sameServices(t, m, one, two, three, outside)
	outside.DSR = false
	must(t, m.UpsertService(outside))
	sameServices(t, m, one, two, three, outside)
	// Every change of a row, alone.
	for name, change := range map[string]func(s *datapath.Service){
		"fewer":       func(s *datapath.Service) { s.Backends = s.Backends[1:] },
		"more":        func(s *datapath.Service) { s.Backends = service("10.96.0.1:443", 6, 9).Backends },
		"none":        func(s *datapath.Service) { s.Backends = nil },
		"one":         func(s *datapath.Service) { s.Backends = service("10.96.0.1:443", 6, 1).Backends },
		"number":      func(s *datapath.Service) { s.ID++ },
		"affinity":    func(s *datapath.Service) { s.Affinity = 10 * time.Second },
		"longer":      func(s *datapath.Service) { s.Affinity = 10800 * time.Second },
		"no affinity": func(s *datapath.Service) { s.Affinity = 0 },
		"elsewhere":   func(s *datapath.Service) { s.Backends, s.RemoteOnly = nil, true },
		"no source":   func(s *datapath.Service) { s.LimitSources = true },
		"for some": func(s *datapath.Service) {
			s.LimitSources, s.Sources = true, prefixes("0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/9", "10.1.2.3/32")
		},
		"for some, refusing": func(s *datapath.Service) { s.Backends, s.LimitSources, s.Sources = nil, true, prefixes("10.0.0.0/8") },
		"consistent":         func(s *datapath.Service) { s.Maglev = true },
		"consistent, none":   func(s *datapath.Service) { s.Backends, s.Maglev = nil, true },
	} {
		s := one
		change(&s)
		must(t, m.UpsertService(s))
		must(t, m.PruneServiceSets())
		sameServices(t, m, s, two, three, outside)
		must(t, m.UpsertService(one))
		sameServices(t, m, one, two, three, outside)
		if t.Failed() {
			t.Fatalf("after %s", name)
		}
	}
	// The caller's backends stay the caller's.
	want := slices.Clone(one.Backends)
	must(t, m.UpsertService(one))
	one.Backends[0] = netip.MustParseAddrPort("9.9.9.9:9")
	sameServices(t, m, datapath.Service{ServiceFrontend: one.ServiceFrontend, ID: one.ID, Backends: want}, two, three, outside)
	for range 2 {
		must(t, m.DeleteService(one.ServiceFrontend))
		must(t, m.DeleteService(three.ServiceFrontend))
	}
	sameServices(t, m, two, outside)
	n, err := m.ForgetServiceFlows(t.Context(), func(datapath.ServiceFlow) bool { t.Error("a flow in a new map"); return true })
	if n != 0 || err != nil {
		t.Errorf("forgot %d flows of none: %v", n, err)
	}
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func testServiceInvalid(t *testing.T, m datapath.Services) {
	for name, change := range map[string]func(*datapath.Service){
		"no address":         func(s *datapath.Service) { s.Addr = netip.AddrPort{} },
		"no port":            func(s *datapath.Service) { s.Addr = netip.AddrPortFrom(s.Addr.Addr(), 0) },
		"mapped":             func(s *datapath.Service) { s.Addr = netip.MustParseAddrPort("[::ffff:1.2.3.4]:5") },
		"unspecified":        func(s *datapath.Service) { s.Addr = netip.MustParseAddrPort("0.0.0.0:5") },
		"ICMP":               func(s *datapath.Service) { s.Proto = 1 },
		"scope of its own":   func(s *datapath.Service) { s.Scope = 4 },
		"other node's own":   func(s *datapath.Service) { s.Scope = datapath.ServiceRemoteNode },
		"other family":       func(s *datapath.Service) { s.Backends[0] = netip.MustParseAddrPort("[::1]:5") },
		"backend twice":      func(s *datapath.Service) { s.Backends[1] = s.Backends[0] },
		"unsorted":           func(s *datapath.Service) { slices.Reverse(s.Backends) },
		"backend of no port": func(s *datapath.Service) { s.Backends[0] = netip.AddrPortFrom(s.Backends[0].Addr(), 0) },
		"endless affinity":   func(s *datapath.Service) { s.Affinity = datapath.MaxServiceAffinity + 1 },
		"here and elsewhere": func(s *datapath.Service) { s.RemoteOnly = true },
		"ranges for all":     func(s *datapath.Service) { s.Sources = prefixes("10.0.0.0/8") },
		"range not masked":   func(s *datapath.Service) { s.LimitSources, s.Sources = true, prefixes("10.0.0.1/8") },
		"range twice":        func(s *datapath.Service) { s.LimitSources, s.Sources = true, prefixes("10.0.0.0/8", "10.0.0.0/8") },
		"other's range":      func(s *datapath.Service) { s.LimitSources, s.Sources = true, prefixes("fd00::/8") },
		"negative affinity":  func(s *datapath.Service) { s.Affinity = -1 },
	} {
		s := service("10.96.0.1:443", 6, 3)
		change(&s)
		if err := m.UpsertService(s); err == nil {
			t.Errorf("service with %s accepted", name)
		}
	}
	sameServices(t, m)
}

func testServiceFull(t *testing.T, m datapath.Services, room int) {
	one := service("10.96.0.1:443", 6, room/2)
	must(t, m.UpsertService(one))
	if err := m.UpsertService(service("10.96.0.2:443", 6, room)); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("a service too large: %v", err)
	}
	if err := m.UpsertService(service("10.96.0.1:443", 6, room)); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("growing too large: %v", err)
	}
	sameServices(t, m, one) // nothing is left behind, the old row stands
	two := service("10.96.0.2:443", 6, room-room/2)
	must(t, m.UpsertService(two))
	sameServices(t, m, one, two)
	// A frontend does not go on leading to what is none of its backends any more: as many others
	// have their place, and of more the ones that stay.
	shifted := func(s datapath.Service, by, n int) datapath.Service {
		s.Backends = service(s.Addr.String(), s.Proto, by+n).Backends[by:]
		return s
	}
	one = shifted(one, 3, room/2)
	must(t, m.UpsertService(one))
	sameServices(t, m, one, two)
	for range 2 { // as a retry after a failure
		if err := m.UpsertService(shifted(one, 5, room/2+10)); !errors.Is(err, datapath.ErrFull) {
			t.Errorf("growing too large among others: %v", err)
		}
		sameServices(t, m, shifted(one, 5, room/2), two)
	}
	one = shifted(one, 5, room/2-1)
	must(t, m.UpsertService(one))
	sameServices(t, m, one, two)
	must(t, m.DeleteService(two.ServiceFrontend))
	must(t, m.UpsertService(service("10.96.0.3:443", 6, room-room/2)))
}

// Writers of different rows at once leave all rows.
func testServiceConcurrent(t *testing.T, m datapath.Services) {
	done := make(chan error)
	last := func(w int) datapath.Service { return service(fmt.Sprintf("10.96.0.%d:80", w+1), 6, 5+w) }
	for w := range 4 {
		go func() {
			var errs []error
			for i := range 30 {
				s := last(w)
				s.Backends = s.Backends[:i%(5+w)]
				errs = append(errs, m.UpsertService(s))
			}
			done <- errors.Join(append(errs, m.UpsertService(last(w)))...)
		}()
	}
	for range 4 {
		must(t, <-done)
	}
	sameServices(t, m, last(0), last(1), last(2), last(3))
}
