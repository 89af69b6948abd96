package endpoints

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
)

// memory is an address cache that reports what must not happen to the addresses of pods that are
// there all the time.
type memory struct {
	t    *testing.T
	has  map[netip.Addr]ipcache.Claim
	kept func(netip.Addr) bool
}

func (m *memory) Upsert(p netip.Prefix, c ipcache.Claim) (uint64, error) {
	ip := p.Addr()
	if old := m.has[ip]; m.kept(ip) && c.Identity < old.Identity {
		m.t.Errorf("%s went back from %s to the older %s", ip, old.Identity, c.Identity)
	}
	m.has[ip] = c
	return 0, nil
}

func (m *memory) Delete(p netip.Prefix, _ ipcache.Source, _ string) uint64 {
	if m.kept(p.Addr()) {
		m.t.Errorf("%s got lost", p.Addr())
	}
	delete(m.has, p.Addr())
	return 0
}

// author is an operator that writes slices, and a server that remembers all events. Identities
// count up with every change, so that it shows which is older.
type author struct {
	*rand.Rand
	version uint64
	next    int64
	slices  map[string]v2alpha1.CiliumEndpointSlice
	want    map[string]int64    // identity by pod
	ips     map[string]string   // by pod
	events  []func(h handler)   // what a watch would deliver
	at      []map[string]sliceV // what the server had then
}

type (
	handler = k8s.Handler[*v2alpha1.CiliumEndpointSlice]
	sliceV  = v2alpha1.CiliumEndpointSlice
)

func (a *author) entry(pod string) v2alpha1.CoreCiliumEndpoint {
	return v2alpha1.CoreCiliumEndpoint{
		Name: pod, IdentityID: a.want[pod],
		Networking: &v2.EndpointNetworking{NodeIP: otherNode, Addressing: []*v2.AddressPair{{IPv4: a.ips[pod]}}},
	}
}

// write writes a slice of pods: what it says of each is the newest.
func (a *author) write(name string, pods []string) {
	a.version++
	if len(pods) == 0 {
		if _, there := a.slices[name]; there {
			delete(a.slices, name)
			a.events = append(a.events, func(h handler) { h.Delete(k8s.Key{Name: name}) })
			a.at = append(a.at, maps.Clone(a.slices))
		}
		return
	}
	s := sliceV{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.FormatUint(a.version, 10)}, Namespace: "team"}
	for _, i := range a.Perm(len(pods)) {
		s.Endpoints = append(s.Endpoints, a.entry(pods[i]))
	}
	a.slices[name] = s
	a.events = append(a.events, func(h handler) { h.Upsert(s.DeepCopy()) })
	a.at = append(a.at, maps.Clone(a.slices))
}

// pods returns who is in a slice and still wanted.
func (a *author) pods(slice string) []string {
	var out []string
	for _, e := range a.slices[slice].Endpoints {
		if a.want[e.Name] != 0 {
			out = append(out, e.Name)
		}
	}
	return out
}

func (a *author) in(pod string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(a.slices)) {
		if slices.Contains(a.pods(name), pod) {
			out = append(out, name)
		}
	}
	return out
}

const (
	ownNode   = "192.0.2.1"
	otherNode = "192.0.2.2"
)

// act does one thing that an operator does.
func (a *author) act() {
	pod := fmt.Sprint("pod-", a.IntN(8))
	if a.IntN(2) == 0 {
		pod = fmt.Sprint("kept-", a.IntN(8))
	}
	slice := fmt.Sprint("ces-", a.IntN(5))
	in := a.in(pod)
	switch r := a.IntN(10); {
	case len(in) == 0: // it comes
		a.next++
		a.want[pod] = a.next
		a.write(slice, append(a.pods(slice), pod))
	case r < 3: // it changes
		a.next++
		a.want[pod] = a.next
		for _, s := range in {
			a.write(s, a.pods(s))
		}
	case r < 7: // it moves: first it comes, then it goes
		if !slices.Contains(in, slice) {
			a.write(slice, append(a.pods(slice), pod))
			in = append(in, slice)
		}
		if r < 4 {
			return
		}
		fallthrough
	case r < 9:
		stays := in[len(in)-1]
		for _, s := range in[:len(in)-1] {
			if s != stays {
				a.write(s, slices.DeleteFunc(a.pods(s), func(p string) bool { return p == pod }))
			}
		}
	case pod[0] == 'p': // it ends
		delete(a.want, pod)
		for _, s := range in {
			a.write(s, a.pods(s))
		}
	}
}

// TestInterleavings has an operator move pods between slices, while a reader observes it late, or
// in lists in any order. The addresses of pods that are there all the time never get lost, and
// never go back to an older identity; and what is believed after each event is what an oracle makes
// of the slices.
func TestInterleavings(t *testing.T) {
	t.Parallel()
	for seed := range 300 {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			a := &author{Rand: rand.New(rand.NewPCG(uint64(seed), 3)), next: 300, slices: map[string]sliceV{}, want: map[string]int64{}, ips: map[string]string{}}
			for i := range 8 {
				a.ips[fmt.Sprint("pod-", i)] = fmt.Sprint("10.0.1.", i/2) // two follow each other
				a.ips[fmt.Sprint("kept-", i)] = fmt.Sprint("10.0.2.", i)
			}
			for i := range 8 {
				a.want[fmt.Sprint("kept-", i)] = 300
				a.write(fmt.Sprint("ces-", i%3), append(a.pods(fmt.Sprint("ces-", i%3)), fmt.Sprint("kept-", i)))
			}
			begin := len(a.events)
			kept := netip.MustParsePrefix("10.0.2.0/24")
			m := &memory{t: t, has: map[netip.Addr]ipcache.Claim{}, kept: kept.Contains}
			e := &Endpoints{
				cfg:   Config{Hosts: []netip.Addr{netip.MustParseAddr(ownNode)}, Slices: true, Accept: func(identity.ID) error { return nil }, Log: slog.New(slog.DiscardHandler)},
				index: newIndex(m, slog.New(slog.DiscardHandler)),
			}
			h := e.slices(func() {})
			known := map[string]string{} // versions by slice
			delivered := begin
			list := func() {
				h.Listing()
				now := a.at[delivered-1]
				for name := range known { // as Follow does: what is gone first
					if _, there := now[name]; !there {
						delete(known, name)
						h.Delete(k8s.Key{Name: name})
					}
				}
				names := slices.Sorted(maps.Keys(now))
				a.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				for _, n := range names {
					if s := now[n]; known[n] != s.ResourceVersion {
						h.Upsert(s.DeepCopy())
					}
				}
				h.Listed("")
			}
			remember := func() {
				known = map[string]string{}
				for n, s := range a.at[delivered-1] {
					known[n] = s.ResourceVersion
				}
			}
			list()
			remember()
			r := &reader{versions: map[string]uint64{}, said: map[string]map[string]*saying{}}
			r.believes(t, m, a.at[delivered-1])
			for range 200 {
				a.act()
				switch a.IntN(10) {
				case 0: // the watch was away: a list of what is now, or of a while ago
					delivered += a.IntN(len(a.events) - delivered + 1)
					list()
				case 1, 2, 3: // it is behind
				default:
					for delivered < len(a.events) && a.IntN(4) > 0 {
						a.events[delivered](h)
						delivered++
						r.believes(t, m, a.at[delivered-1])
					}
				}
				remember()
				r.believes(t, m, a.at[delivered-1])
				if t.Failed() {
					return
				}
			}
		})
	}
}

// reader remembers what each slice says of its pods, as far as it was delivered, and since when.
type reader struct {
	versions map[string]uint64             // by slice
	said     map[string]map[string]*saying // by slice and pod
	sequence int
}

type saying struct {
	ip       netip.Addr
	identity identity.ID
	since    uint64
	sequence int // of those of one version
}

// observe takes the slices as they were delivered.
func (r *reader) observe(now map[string]sliceV) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		s := now[name]
		version := k8s.VersionOf(&s)
		if r.versions[name] == version {
			continue
		}
		r.versions[name] = version
		said := map[string]*saying{}
		for _, ep := range s.Endpoints {
			r.sequence++
			word := &saying{netip.MustParseAddr(ep.Networking.Addressing[0].IPv4), identity.ID(ep.IdentityID), version, r.sequence}
			if old := r.said[name][ep.Name]; old != nil && old.ip == word.ip && old.identity == word.identity {
				word = old
			}
			said[ep.Name] = word
		}
		r.said[name] = said
	}
	for name := range r.said {
		if _, there := now[name]; !there {
			delete(r.said, name)
			delete(r.versions, name)
		}
	}
}

// believes compares the cache with what slices say: of each address, what the slice says that was
// the last to begin to.
func (r *reader) believes(t *testing.T, m *memory, now map[string]sliceV) {
	t.Helper()
	r.observe(now)
	want := map[netip.Addr]*saying{}
	for _, pods := range r.said {
		for _, word := range pods {
			if old := want[word.ip]; old == nil || cmp.Or(cmp.Compare(word.since, old.since), cmp.Compare(word.sequence, old.sequence)) > 0 {
				want[word.ip] = word
			}
		}
	}
	for ip, word := range want {
		if got, there := m.has[ip]; !there || got.Identity != word.identity {
			t.Fatalf("%s is believed to be %s (%t), want %s", ip, got.Identity, there, word.identity)
		}
	}
	for ip := range m.has {
		if want[ip] == nil {
			t.Fatalf("%s is believed to be something, and is nothing", ip)
		}
	}
}
