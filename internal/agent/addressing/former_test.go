package addressing

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
)

// TestFormer: what objects give to pods that the node does not have is reserved until they do not
// any more, and only the very pod may have it again.
func TestFormer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool, err := ipam.New(ipam.Config{IPv4CIDR: netip.MustParsePrefix("10.0.0.0/28")})
		if err != nil {
			t.Fatal(err)
		}
		if err := pool.Restore(netip.MustParseAddr("10.0.0.1"), "a/here"); err != nil {
			t.Fatal(err)
		}
		pool.Open()
		is := func(ip, pod, uid string) pods.Address {
			return pods.Address{IP: netip.MustParseAddr(ip), Pod: k8s.Key{Namespace: "a", Name: pod}, UID: uid}
		}
		var mu sync.Mutex
		named := []pods.Address{
			is("10.0.0.1", "here", "1"),
			is("10.0.0.2", "gone", "2"),
			is("10.0.0.3", "same", "3"), is("10.0.0.3", "same", ""),
			is("10.0.0.4", "namesake", "before"), is("10.0.0.4", "namesake", ""),
			is("10.0.0.5", "same", "3"), is("10.0.0.5", "gone", "2"),
			is("192.0.2.1", "elsewhere", "9"),
		}
		has := map[string]string{"here": "1", "same": "3", "namesake": "now"}
		f := Former{
			Pool: pool, Interval: time.Second, Log: slog.New(slog.DiscardHandler),
			Named: among(&mu, &named),
			Has: func(pod k8s.Key, uid string) bool {
				now, ok := has[pod.Name]
				return ok && (uid == "" || uid == now)
			},
		}
		f.Reserve()
		reserved := func() string {
			var list []string
			for _, a := range pool.Dump() {
				if a.Reserved {
					list = append(list, a.IP.String())
				}
			}
			return fmt.Sprint(list)
		}
		if got := reserved(); got != "[10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5]" {
			t.Errorf("reserved are %s", got)
		}
		for _, a := range named[1:] {
			err := given{pool}.Claim(a.IP, a.Pod.String(), "")
			if (err == nil) != (a.IP == netip.MustParseAddr("10.0.0.3")) {
				t.Errorf("%s asks for %s: %v", a.Pod, a.IP, err)
			}
		}
		ended := make(chan error)
		ctx, end := context.WithCancel(t.Context())
		go func() { ended <- f.Run(ctx) }()
		forget := func(ips ...string) {
			mu.Lock()
			named = slices.DeleteFunc(named, func(a pods.Address) bool { return slices.Contains(ips, a.IP.String()) })
			mu.Unlock()
			time.Sleep(2 * f.Interval)
			synctest.Wait()
		}
		forget()
		if got := reserved(); got != "[10.0.0.2 10.0.0.4 10.0.0.5]" {
			t.Errorf("reserved are %s as long as objects name them", got)
		}
		forget("10.0.0.2", "10.0.0.4")
		if got := reserved(); got != "[10.0.0.5]" {
			t.Errorf("reserved are %s after the objects of two have gone", got)
		}
		forget("10.0.0.3", "10.0.0.5")
		if got := reserved(); got != "[]" {
			t.Errorf("reserved are %s in the end", got)
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if a, _ := pool.Lookup(netip.MustParseAddr("10.0.0.3")); a.Owner != "a/same" {
			t.Errorf("the pod that had its address again has lost it: %+v", a)
		}
	})
}

// TestFormerIsUsed: the operator learns that an address of a former pod is used, and may not take
// it from the node: it could give it to another one, while others know the pod by it.
func TestFormerIsUsed(t *testing.T) {
	t.Parallel()
	const a, b = "10.0.0.1", "10.0.0.2"
	s, pool := singlesAt(t, t.TempDir())
	s.Observe(shown(1, []string{a, b}, a+"=marked-for-release"))
	pool.Open()
	if !pool.Reserve(netip.MustParseAddr(a), "ns/gone", false) {
		t.Fatal("the address is not reserved")
	}
	got, _ := s.status(s.object)
	used := got["ipam"].(map[string]any)["used"].(map[string]any)
	if used[a] != (v2.AllocationIP{Owner: "former pod ns/gone", Resource: "eni-1"}) || released(got)[a] != v2.IPDoNotRelease {
		t.Errorf("used: %v, answers: %v", used, released(got))
	}
	pool.Forget(netip.MustParseAddr(a))
	if got, _ := s.status(s.object); released(got)[a] != v2.IPReadyForRelease {
		t.Errorf("answers after it is forgotten: %v", released(got))
	}
}

// TestFormerOfLaterAddresses: what the operator assigns to a running node is given to no pod as
// long as objects give it to a pod elsewhere: a node has died, and its addresses are this one's.
func TestFormerOfLaterAddresses(t *testing.T) {
	t.Parallel()
	const first, later = "10.0.0.1", "10.0.0.17"
	for name, assign := range map[string]func(t *testing.T) (pool *ipam.IPAM, more func()){
		"a second block": func(t *testing.T) (*ipam.IPAM, func()) {
			n, pool := nodePoolsAt(t, t.TempDir())
			n.Observe(ciliumNode(1, "10.0.0.0/30"))
			return pool, func() { n.Observe(ciliumNode(2, "10.0.0.0/30", "10.0.0.16/30")) }
		},
		"a second address": func(t *testing.T) (*ipam.IPAM, func()) {
			s, pool := singlesAt(t, t.TempDir())
			s.Observe(shown(1, []string{first, "10.0.0.2"}))
			pool.Open()
			return pool, func() { s.Observe(shown(2, []string{first, "10.0.0.2", later, "10.0.0.18"})) }
		},
		"an address that was being given back": func(t *testing.T) (*ipam.IPAM, func()) {
			s, pool := singlesAt(t, t.TempDir())
			all := []string{first, "10.0.0.2", later, "10.0.0.18"}
			s.Observe(shown(1, all, later+"=ready-for-release", "10.0.0.18=ready-for-release"))
			pool.Open()
			return pool, func() { s.mu.Lock(); defer s.mu.Unlock(); s.take(shown(1, all), true) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pool, more := assign(t)
				var mu sync.Mutex
				named := []pods.Address{{IP: netip.MustParseAddr(later), Pod: k8s.Key{Namespace: "a", Name: "elsewhere"}, UID: "1"}}
				f := Former{
					Pool: pool, Interval: time.Second, Log: slog.New(slog.DiscardHandler),
					Named: among(&mu, &named),
					Has:   func(k8s.Key, string) bool { return false },
				}
				f.Reserve()
				go func() { _ = f.Run(t.Context()) }()
				time.Sleep(2 * f.Interval) // there is nothing to keep yet
				more()
				give := func() (list []string) {
					for {
						r, err := pool.AllocateNext(ipam.IPv4, "a/new", "", false)
						if err != nil {
							slices.Sort(list)
							return list
						}
						list = append(list, r.IPv4.IP.String())
					}
				}
				if got := fmt.Sprint(give()); got != "[10.0.0.1 10.0.0.18 10.0.0.2]" {
					t.Errorf("given are %s while %s is named", got, later)
				}
				time.Sleep(time.Minute)
				if got := give(); len(got) > 0 {
					t.Errorf("given are %s while it is named", got)
				}
				mu.Lock()
				named = nil
				mu.Unlock()
				time.Sleep(2 * f.Interval)
				if got := fmt.Sprint(give()); got != "["+later+"]" {
					t.Errorf("given are %s when it is named no more", got)
				}
			})
		})
	}
}

// among returns a [Former.Named] of a list that mu guards.
func among(mu *sync.Mutex, list *[]pods.Address) func(func(netip.Addr) bool) []pods.Address {
	return func(ofNode func(netip.Addr) bool) []pods.Address {
		mu.Lock()
		defer mu.Unlock()
		return slices.DeleteFunc(slices.Clone(*list), func(a pods.Address) bool { return !ofNode(a.IP) })
	}
}
