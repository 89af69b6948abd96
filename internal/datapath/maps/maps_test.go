package maps_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/conformance"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/testenv"
)

// counter is a value of the map metrics: struct metric in bpf/lib/maps.h.
type counter struct{ Packets, Bytes uint64 }

func small() maps.Config {
	c := maps.Defaults()
	c.Dir, c.CTEntries, c.Fragments, c.PolicyEntries = "", 4096, 256, 1000
	c.IPCacheEntries, c.IPCachePrefixes, c.Endpoints, c.RuleSets = 8192, 64, 64, 64
	c.Services, c.ServiceBackends, c.Affinities, c.Sockets = 64, 1000, 128, 128
	return c
}

func open(t *testing.T, c maps.Config) *maps.Maps {
	t.Helper()
	testenv.RequireRoot(t)
	m, err := maps.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestConformance(t *testing.T) {
	testenv.RequireRoot(t)
	conformance.Maps(t, 1000, func(t *testing.T) datapath.Maps { return open(t, small()) })
}

func TestServicesConformance(t *testing.T) {
	testenv.RequireRoot(t)
	conformance.Services(t, 1000, func(t *testing.T) datapath.Services { return open(t, small()) })
}

// pinDir returns a directory for pins that is unmounted at the end of the test.
func pinDir(t *testing.T) string {
	t.Helper()
	testenv.RequireRoot(t)
	dir := filepath.Join(t.TempDir(), "bpf")
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// TestRestart: the maps outlive the process, with all they hold, and are read back.
func TestRestart(t *testing.T) {
	c := small()
	c.Dir = pinDir(t)
	first := open(t, c)
	rs := datapath.RuleSet{ID: 7, IngressEnforced: true, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{{Identity: 5, Proto: 6}: {Deny: true}}}
	if err := first.InstallRuleSet(rs); err != nil {
		t.Fatal(err)
	}
	svc := datapath.Service{
		ServiceFrontend: datapath.ServiceFrontend{Addr: netip.MustParseAddrPort("10.96.0.1:443"), Proto: 6}, ID: 3, Affinity: time.Hour,
		Backends: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443"), netip.MustParseAddrPort("10.0.0.2:6443")},
	}
	if err := first.UpsertService(svc); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	c.PolicyEntries = 2000 // another size is no reason to lose the content
	second := open(t, c)
	list, err := second.RuleSets()
	if err != nil || len(list) != 1 || list[0].ID != 7 || !list[0].Entries[datapath.PolicyKey{Identity: 5, Proto: 6}].Deny {
		t.Errorf("after a restart: %+v, %v", list, err)
	}
	if n := second.RuleSetCount(); n != 1 {
		t.Errorf("after a restart there are %d rule sets, want 1", n)
	}
	services, err := second.Services()
	if err != nil || len(services) != 1 || !services[0].Equal(svc) {
		t.Errorf("services after a restart: %+v, %v", services, err)
	}
	svc.Backends = svc.Backends[:1]
	if err := errors.Join(second.UpsertService(svc), second.PruneServiceSets()); err != nil {
		t.Error(err)
	}
	services, err = second.Services()
	if err != nil || len(services) != 1 || !services[0].Equal(svc) {
		t.Errorf("services after a change: %+v, %v", services, err)
	}
	// The second knows what the first wrote: a smaller content removes the rest.
	rs.Entries = nil
	if err := second.InstallRuleSet(rs); err != nil {
		t.Fatal(err)
	}
	if list, err := open(t, c).RuleSets(); err != nil || len(list) != 1 || len(list[0].Entries) != 0 {
		t.Errorf("seen from outside: %+v, %v", list, err)
	}
}

// TestForeignPin: a pin that is no map of ours is an error that says what to do, not a crash.
func TestForeignPin(t *testing.T) {
	c := small()
	c.Dir = pinDir(t)
	m := open(t, c)
	m.Close()
	pins, err := filepath.Glob(filepath.Join(c.Dir, "maps-*", "ct"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("pins %v, %v", pins, err)
	}
	if err := os.Rename(filepath.Join(filepath.Dir(pins[0]), "policy"), pins[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Open(c); err == nil || !strings.Contains(err.Error(), "another build") {
		t.Errorf("open with a foreign pin: %v", err)
	}
}

// TestFixedSizeGrows: an agent that knows more reasons for drops than the last one has a counter
// for each. Counters of the same size are kept.
func TestFixedSizeGrows(t *testing.T) {
	c := small()
	c.Dir = pinDir(t)
	first := open(t, c)
	counters := first.Replacements()["metrics"]
	want := counters.MaxEntries()
	perCPU := make([]counter, ebpf.MustPossibleCPU())
	perCPU[0].Packets = 5
	if err := counters.Put(uint32(1), perCPU); err != nil {
		t.Fatal(err)
	}
	first.Close()
	second := open(t, c)
	if err := second.Replacements()["metrics"].Lookup(uint32(1), &perCPU); err != nil || perCPU[0].Packets != 5 {
		t.Errorf("counters of the same size: %+v, %v; want those of before", perCPU[0], err)
	}
	second.Close()

	pins, err := filepath.Glob(filepath.Join(c.Dir, "maps-*", "metrics"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("pins %v, %v", pins, err)
	}
	older, err := ebpf.NewMap(&ebpf.MapSpec{Name: "metrics", Type: counters.Type(), KeySize: counters.KeySize(), ValueSize: counters.ValueSize(), MaxEntries: want - 2})
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close()
	if err := errors.Join(os.Remove(pins[0]), older.Pin(pins[0])); err != nil {
		t.Fatal(err)
	}
	if got := open(t, c).Replacements()["metrics"].MaxEntries(); got != want {
		t.Errorf("after an upgrade there are %d counters, want %d", got, want)
	}
}

// TestRollback: a map that is pinned where agents without it have written the others since says
// nothing of these. An agent that is upgraded again takes neither.
func TestRollback(t *testing.T) {
	c := small()
	c.Dir = pinDir(t)
	first := open(t, c)
	if err := first.SetKnownIdentities([]uint32{1000}); err != nil {
		t.Fatal(err)
	}
	first.Close()
	pins, err := filepath.Glob(filepath.Join(c.Dir, "maps-*"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("pins %v, %v", pins, err)
	}
	// Agents without unknown_identities have the layout v9 too.
	if v9 := filepath.Join(c.Dir, "maps-v9"); pins[0] != v9 {
		if err := os.Rename(pins[0], v9); err != nil {
			t.Fatal(err)
		}
	}
	if ids, all, err := open(t, c).KnownIdentities(); err != nil || !all || len(ids) > 0 {
		t.Errorf("the identities %v are known (all: %t), %v; want all", ids, all, err)
	}
}

// mapsOfLayout are the maps of a layout, by name, with their type and the sizes of key and value.
const mapsOfLayout = `maps-v10
addresses Hash 16 72
blocks LPMTrie 24 4
ct LRUHash 40 64
ct_accounts Array 4 20
ct_excess Array 4 40
endpoints Hash 4 72
event_shares PerCPUArray 4 8
events_drop RingBuf 0 0
events_lost PerCPUArray 4 8
events_trace RingBuf 0 0
events_verdict RingBuf 0 0
fragments Hash 8 48
interfaces Hash 4 8
ipcache Hash 16 24
ipcache_prefix LPMTrie 24 24
lb_affinity LRUHash 24 32
lb_members Hash 32 4
lb_ranges LPMTrie 24 4
lb_rejects PerCPUArray 4 8
lb_services Hash 24 20
lb_slots Hash 8 24
lb_sockets LRUHash 32 24
lb_tables Hash 8 960
masquerade Hash 40 24
masquerade_accounts Array 4 4
metrics PerCPUArray 4 16
monitor Array 4 4
policy Hash 16 8
rule_sets Hash 4 28
tunnel_peers Hash 16 16
unknown_identities Array 4 8
`

// TestLayout: what belongs to a layout is written down, so that it changes with the maps.
func TestLayout(t *testing.T) {
	c := small()
	c.Dir = pinDir(t)
	var list []string
	for name, m := range open(t, c).Replacements() {
		list = append(list, fmt.Sprintf("%s %s %d %d\n", name, m.Type(), m.KeySize(), m.ValueSize()))
	}
	slices.Sort(list)
	pins, err := filepath.Glob(filepath.Join(c.Dir, "maps-*"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("pins %v, %v", pins, err)
	}
	if diff := cmp.Diff(mapsOfLayout, filepath.Base(pins[0])+"\n"+strings.Join(list, "")); diff != "" {
		t.Errorf("other maps need another layout (see layout in maps.go), and are listed here (-want +got):\n%s", diff)
	}
}

func TestConfig(t *testing.T) {
	if err := maps.Defaults().Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	c := maps.Defaults()
	c.Dir, c.EventBytes, c.CTEntries, c.PolicyEntries = "relative", 5000, 1, 0
	err := c.Validate()
	for _, want := range []string{"directory", "power of two", "bpf-ct-max", "bpf-policy-map-max"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not speak of %s: %v", want, err)
		}
	}
}

// deleteFirst deletes an entry of a map behind the back of who writes it.
func deleteFirst(t *testing.T, m *maps.Maps, name string) {
	t.Helper()
	km := m.Replacements()[name]
	k, v := make([]byte, km.KeySize()), make([]byte, km.ValueSize())
	if !km.Iterate().Next(&k, &v) {
		t.Fatalf("map %s is empty", name)
	}
	if err := km.Delete(k); err != nil {
		t.Fatal(err)
	}
}

// TestServicesEditedByOthers: whichever entry of the tables of services another process deletes or
// adds, RecheckServices names the frontend once, and the next write of the row completes it.
func TestServicesEditedByOthers(t *testing.T) {
	c := small()
	c.MaglevServices = 4
	m := open(t, c)
	svc := datapath.Service{
		ServiceFrontend: datapath.ServiceFrontend{Addr: netip.MustParseAddrPort("10.96.0.1:443"), Proto: 6, Scope: datapath.ServiceExternal},
		ID:              1, LimitSources: true, Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Maglev: true,
		Backends: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443"), netip.MustParseAddrPort("10.0.0.2:6443")},
	}
	if err := m.UpsertService(svc); err != nil {
		t.Fatal(err)
	}
	counts := func() string {
		all := ""
		for _, name := range []string{"lb_services", "lb_slots", "lb_members", "lb_ranges", "lb_tables"} {
			n, it := 0, m.Replacements()[name].Iterate()
			k, v := make([]byte, m.Replacements()[name].KeySize()), make([]byte, m.Replacements()[name].ValueSize())
			for it.Next(&k, &v) {
				n++
			}
			all += fmt.Sprint(" ", n)
		}
		return all
	}
	before := counts()
	for _, name := range []string{"lb_services", "lb_slots", "lb_members", "lb_ranges", "lb_tables"} {
		deleteFirst(t, m, name)
		list, changed, err := m.RecheckServices()
		if err != nil || len(changed) != 1 || changed[0] != svc.ServiceFrontend || len(list) == 1 && list[0].Equal(svc) {
			t.Errorf("%s: rechecked: %+v, changed %v, %v", name, list, changed, err)
		}
		if err := errors.Join(m.UpsertService(svc), m.PruneServiceSets()); err != nil {
			t.Fatal(err)
		}
		list, changed, err = m.RecheckServices()
		if err != nil || len(changed) != 0 || len(list) != 1 || !list[0].Equal(svc) || counts() != before {
			t.Errorf("%s: restored: %+v, changed %v, %v, entries %s, want %s", name, list, changed, err, counts(), before)
		}
	}
}

// TestFrontendWithSetOfAnother: a frontend that another process adds, with the backends of an
// existing one, takes nothing from that when it is removed.
func TestFrontendWithSetOfAnother(t *testing.T) {
	m := open(t, small())
	svc := datapath.Service{
		ServiceFrontend: datapath.ServiceFrontend{Addr: netip.MustParseAddrPort("10.96.0.1:443"), Proto: 6}, ID: 1,
		LimitSources: true, Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		Backends: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443"), netip.MustParseAddrPort("10.0.0.2:6443")},
	}
	if err := m.UpsertService(svc); err != nil {
		t.Fatal(err)
	}
	rows := m.Replacements()["lb_services"]
	key, value := make([]byte, rows.KeySize()), make([]byte, rows.ValueSize())
	if !rows.Iterate().Next(&key, &value) {
		t.Fatal("no frontend was written")
	}
	key[15]++
	if err := rows.Put(key, value); err != nil {
		t.Fatal(err)
	}
	added := datapath.ServiceFrontend{Addr: netip.MustParseAddrPort("10.96.0.2:443"), Proto: 6}
	if _, changed, err := m.RecheckServices(); err != nil || len(changed) != 1 || changed[0] != added {
		t.Fatalf("changed: %v, %v, want %v", changed, err, added)
	}
	if err := errors.Join(m.DeleteService(added), m.PruneServiceSets()); err != nil {
		t.Fatal(err)
	}
	list, changed, err := m.RecheckServices()
	if err != nil || len(changed) != 0 || len(list) != 1 || !list[0].Equal(svc) {
		t.Errorf("left: %+v, changed %v, %v", list, changed, err)
	}
	// Written anew, it has a set of its own.
	other := svc
	other.ServiceFrontend = added
	if err := errors.Join(rows.Put(key, value), m.UpsertService(other), m.DeleteService(svc.ServiceFrontend), m.PruneServiceSets()); err != nil {
		t.Fatal(err)
	}
	if list, err := m.Services(); err != nil || len(list) != 1 || !list[0].Equal(other) {
		t.Errorf("left: %+v, %v", list, err)
	}
}
