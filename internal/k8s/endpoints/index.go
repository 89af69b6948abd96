package endpoints

import (
	"cmp"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
)

// Cache is the part of the address cache that is written to.
type Cache interface {
	Upsert(p netip.Prefix, c ipcache.Claim) (revision uint64, err error)
	Delete(p netip.Prefix, source ipcache.Source, owner string) (revision uint64)
}

// index has the statement of each object about each address. Several may claim one while a pod
// follows another, or moves from one slice to the other: then the one that was written last counts,
// whichever was observed last, and when it goes the one before. A slice is written for any of its
// pods; its other entries are not newer for that. It is safe for concurrent use.
//
// A list arrives in no order. While one arrives, what is not in it any more counts as before, until
// there is something newer: so an address is not lost, nor reverts to an older statement, because
// the object that it left arrives before the one that it came to.
type index struct {
	cache Cache
	log   *slog.Logger

	mu   sync.Mutex
	said map[string]statement
	// holder is who counts for an address, others are those who claim it too.
	holder   map[netip.Addr]string
	others   map[netip.Addr][]string
	sequence uint64 // how many statements there were

	listing bool
	stale   map[stale]age // while a list arrives
}

// stale is a claim that is no longer made.
type stale struct {
	ip  netip.Addr
	who string
}

// statement is the contents of one object.
type statement struct {
	ip4, ip6 netip.Addr
	claim    ipcache.Claim
	// uid is the pod's, if the object has it: another pod may have all else in common.
	uid      string
	workload pods.Workload
	age
}

// same reports whether two statements are equal and of the same pod.
func (s statement) same(o statement) bool {
	return s.ip4 == o.ip4 && s.ip6 == o.ip6 && s.uid == o.uid && reflect.DeepEqual(s.claim, o.claim)
}

// age orders statements: by the version of the object with which it began to say so, as far as that
// was observed, and those of one version by when they were observed.
type age struct{ version, sequence uint64 }

func (s statement) addrs() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{s.ip4, s.ip6}, func(ip netip.Addr) bool { return !ip.IsValid() })
}

func newIndex(cache Cache, log *slog.Logger) *index {
	return &index{
		cache: cache, log: log, said: map[string]statement{}, holder: map[netip.Addr]string{}, others: map[netip.Addr][]string{}, stale: map[stale]age{},
	}
}

// beginList notes that a list arrives from now on.
func (b *index) beginList() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listing = true
}

// endList notes that the list has arrived.
func (b *index) endList() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listing = false
	for s := range b.stale {
		delete(b.stale, s)
		b.drop(s.ip, s.who)
	}
}

// set replaces an object's statement.
func (b *index) set(who string, s statement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, known := b.said[who]
	if known && old.same(s) && old.version <= s.version { // else the server went back to an old copy
		s.age = old.age
	} else {
		b.sequence++
		s.sequence = b.sequence
	}
	for _, ip := range old.addrs() {
		if ip != s.ip4 && ip != s.ip6 {
			b.leave(ip, who, old.age)
		}
	}
	b.said[who] = s
	for _, ip := range s.addrs() {
		delete(b.stale, stale{ip, who})
		switch holder, held := b.holder[ip]; {
		case !held || holder == who:
			b.holder[ip] = who
			b.elect(ip)
		default:
			b.withdraw(ip, who)
			b.others[ip] = append(b.others[ip], who)
			b.elect(ip)
		}
	}
}

// identityOf returns the identity that an object names; 0 if it names none.
func (b *index) identityOf(who string) identity.ID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said[who].claim.Identity
}

// workloadAt returns what made the pod that has an address, of the object that counts for it.
func (b *index) workloadAt(ip netip.Addr, pod k8s.Key) pods.Workload {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.said[b.holder[ip]]; s.claim.Namespace == pod.Namespace && s.claim.Pod == pod.Name {
		return s.workload
	}
	return pods.Workload{}
}

// addresses returns who counts for the addresses that are a node's.
func (b *index) addresses(ofNode func(netip.Addr) bool) (out []pods.Address) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ip, who := range b.holder {
		if ofNode(ip) {
			s := b.said[who]
			out = append(out, pods.Address{IP: ip, Pod: k8s.Key{Namespace: s.claim.Namespace, Name: s.claim.Pod}, UID: s.uid})
		}
	}
	return out
}

// newer reports whether x's statement about an address was written after y's.
func (b *index) newer(ip netip.Addr, x, y string) bool {
	of := func(who string) age {
		if a, gone := b.stale[stale{ip, who}]; gone {
			return a
		}
		return b.said[who].age
	}
	ax, ay := of(x), of(y)
	return cmp.Or(cmp.Compare(ax.version, ay.version), cmp.Compare(ax.sequence, ay.sequence)) > 0
}

// elect has the one count for an address who should, and hands the cache its claim. The address
// must have a holder.
func (b *index) elect(ip netip.Addr) {
	best := b.holder[ip]
	for _, who := range b.others[ip] {
		if b.newer(ip, who, best) {
			best = who
		}
	}
	if old := b.holder[ip]; old != best {
		b.withdraw(ip, best)
		b.others[ip] = append(b.others[ip], old)
		b.holder[ip] = best
	}
	if _, gone := b.stale[stale{ip, best}]; !gone { // its claim to the address stays, until the list has arrived
		b.apply(ip, b.said[best].claim)
	}
}

// withdraw takes who from those who claim an address without counting.
func (b *index) withdraw(ip netip.Addr, who string) {
	left := slices.DeleteFunc(b.others[ip], func(w string) bool { return w == who })
	if len(left) == 0 {
		delete(b.others, ip)
		return
	}
	b.others[ip] = left
}

// remove forgets an object.
func (b *index) remove(who string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.said[who]
	if !ok {
		return
	}
	delete(b.said, who)
	for _, ip := range s.addrs() {
		b.leave(ip, who, s.age)
	}
}

// leave takes who from those who claim an address, at the end of the list if one arrives.
func (b *index) leave(ip netip.Addr, who string, said age) {
	if b.listing {
		b.stale[stale{ip, who}] = said
		return
	}
	b.drop(ip, who)
}

// drop takes who from those who claim an address.
func (b *index) drop(ip netip.Addr, who string) {
	if b.holder[ip] != who {
		b.withdraw(ip, who)
		return
	}
	others := b.others[ip]
	if len(others) == 0 {
		delete(b.holder, ip)
		b.cache.Delete(ipcache.Single(ip), ipcache.KVStore, "")
		return
	}
	next := others[0]
	b.withdraw(ip, next)
	b.holder[ip] = next
	b.elect(ip)
}

func (b *index) apply(ip netip.Addr, c ipcache.Claim) {
	if _, err := b.cache.Upsert(ipcache.Single(ip), c); err != nil {
		b.log.Warn("ignored an invalid address", "address", ip, "pod", c.Namespace+"/"+c.Pod, "error", err)
	}
}
