package endpoints

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/ipcache"
)

// Cache is the part of the address cache that is written to.
type Cache interface {
	Upsert(p netip.Prefix, c ipcache.Claim) (revision uint64, err error)
	Delete(p netip.Prefix, source ipcache.Source, owner string) (revision uint64)
}

// book has what each object says of which address. Several may claim one while a pod follows another: then the one that was heard last counts, and when it
// goes the one before. It is safe for concurrent use.
type book struct {
	cache Cache
	log   *slog.Logger

	mu   sync.Mutex
	said map[string]statement
	// holder is who counts for an address, others are those who claim it too, the one heard last at the end.
	holder map[netip.Addr]string
	others map[netip.Addr][]string
}

// statement is what one object says.
type statement struct {
	ip4, ip6 netip.Addr
	claim    ipcache.Claim
}

func (s statement) addrs() []netip.Addr {
	var out []netip.Addr
	for _, ip := range []netip.Addr{s.ip4, s.ip6} {
		if ip.IsValid() {
			out = append(out, ip)
		}
	}
	return out
}

func newBook(cache Cache, log *slog.Logger) *book {
	return &book{cache: cache, log: log, said: map[string]statement{}, holder: map[netip.Addr]string{}, others: map[netip.Addr][]string{}}
}

// set replaces what an object says.
func (b *book) set(who string, s statement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ip := range b.said[who].addrs() {
		if ip != s.ip4 && ip != s.ip6 {
			b.drop(ip, who)
		}
	}
	b.said[who] = s
	for _, ip := range s.addrs() {
		if holder, ok := b.holder[ip]; ok && holder != who {
			b.withdraw(ip, who)
			b.others[ip] = append(b.others[ip], holder)
		}
		b.holder[ip] = who
		b.say(ip, s.claim)
	}
}

// withdraw takes who from those who claim an address without counting.
func (b *book) withdraw(ip netip.Addr, who string) {
	left := slices.DeleteFunc(b.others[ip], func(w string) bool { return w == who })
	if len(left) == 0 {
		delete(b.others, ip)
		return
	}
	b.others[ip] = left
}

// remove forgets an object.
func (b *book) remove(who string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.said[who]
	if !ok {
		return
	}
	delete(b.said, who)
	for _, ip := range s.addrs() {
		b.drop(ip, who)
	}
}

// drop takes who from those who claim an address. It must be called with mu held.
func (b *book) drop(ip netip.Addr, who string) {
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
	next := others[len(others)-1]
	b.withdraw(ip, next)
	b.holder[ip] = next
	b.say(ip, b.said[next].claim)
}

func (b *book) say(ip netip.Addr, c ipcache.Claim) {
	if _, err := b.cache.Upsert(ipcache.Single(ip), c); err != nil {
		b.log.Warn("ignored an address that makes no sense", "address", ip, "pod", c.Namespace+"/"+c.Pod, "error", err)
	}
}
