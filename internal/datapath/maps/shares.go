package maps

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Conntrack is one table for all, from which the entry not used for longest goes when it is full.
// So that an endpoint's flood does not displace entries of others, each has a share of it, which
// grows while others leave room. Parts of the table:
const (
	podPart    = 8   // an endpoint's share
	podFloor   = 256 // its share if many take much
	nodePart   = 4   // the share of the node itself and of hosts outside
	excessPart = 8   // what all endpoints beyond their shares have together
	// allPart is what endpoints may have together: where their shares come to more, these are
	// halved until they do not.
	allPart = 2
	// growPart is how much of what is left of that an endpoint may take from one count to the next
	// beyond what it holds.
	growPart = 4
)

// owners are the incarnations that an entry remembers.
type owners struct{ src, dst uint32 }

// all reports whether each is in the table, or unused.
func (o owners) all(known map[uint32]uint16) bool {
	for _, one := range []uint32{o.src, o.dst} {
		if _, ok := known[one]; one != 0 && !ok {
			return false
		}
	}
	return true
}

// payer is the endpoint that a flow is accounted to, as ct_account_of of bpf/lib/conntrack.h says.
func (o owners) payer(known map[uint32]uint16) uint16 {
	if o.src != 0 {
		return known[o.src]
	}
	return known[o.dst]
}

// incarnations returns the endpoints' numbers by their incarnations.
func (m *Maps) incarnations() (map[uint32]uint16, error) {
	eps, err := m.Endpoints()
	if err != nil {
		return nil, fmt.Errorf("conntrack: list its owners: %w", err)
	}
	known := make(map[uint32]uint16, len(eps))
	for _, ep := range eps {
		known[ep.Incarnation] = ep.ID
	}
	return known, nil
}

// openAccount gives a new endpoint its share. The number may have been another's.
func (m *Maps) openAccount(id uint16) error {
	now, err := now()
	if err != nil {
		return fmt.Errorf("endpoint %d: read the clock: %w", id, err)
	}
	account := kernelCtAccount{
		Share: m.maps[kernelMapCt].MaxEntries() / podPart, Counted: now, Slots: m.maps[kernelMapCtExcess].MaxEntries(),
	}
	if err := m.maps[kernelMapCtAccounts].Put(uint32(id), account); err != nil {
		return fmt.Errorf("endpoint %d: open its account of flows: %w", id, err)
	}
	return nil
}

// byPayer returns how many entries each endpoint pays for.
func byPayer(held map[owners]int, known map[uint32]uint16) map[uint16]int {
	counts := make(map[uint16]int, len(known)+1)
	counts[0] = 0
	for _, id := range known {
		counts[id] = 0
	}
	for of, n := range held {
		counts[of.payer(known)] += n
	}
	return counts
}

// publishShares publishes to the programs what each endpoint holds and may hold.
func (m *Maps) publishShares(held map[owners]int, known map[uint32]uint16, now uint32) error {
	size := int(m.maps[kernelMapCt].MaxEntries())
	counts := byPayer(held, known)
	share := podShare(counts, size)
	grow := max(0, size/allPart-podsHold(counts)) / growPart
	var errs []error
	for id, n := range counts {
		var account kernelCtAccount
		if err := m.maps[kernelMapCtAccounts].Lookup(uint32(id), &account); err != nil {
			errs = append(errs, fmt.Errorf("read the account of endpoint %d: %w", id, err))
			continue
		}
		account.Entries, account.Share, account.Counted = uint32(n), uint32(max(share, n+grow)), now
		account.Slots = m.maps[kernelMapCtExcess].MaxEntries()
		if id == 0 {
			account.Share = uint32(nodeShare(size, len(counts)-1))
		}
		if err := m.maps[kernelMapCtAccounts].Put(uint32(id), account); err != nil {
			errs = append(errs, fmt.Errorf("write the account of endpoint %d: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// nodeShare is pure: what the node itself and hosts outside may have. On a node without pods, which
// balances for others, that is all but the place of what is beyond it.
func nodeShare(size, pods int) int {
	if pods == 0 {
		return size - size/excessPart
	}
	return size / nodePart
}

// podsHold is how many entries the endpoints have together.
func podsHold(counts map[uint16]int) int {
	sum := 0
	for id, n := range counts {
		if id != 0 {
			sum += n
		}
	}
	return sum
}

// takeBack removes entries of endpoints that hold more than a share of the common part, if others
// need it: those of unanswered flows first. It subtracts them from held, and returns how many there
// were.
func (m *Maps) takeBack(ctx context.Context, held map[owners]int, known map[uint32]uint16) (removed int, err error) {
	ct := m.maps[kernelMapCt]
	size := int(ct.MaxEntries())
	counts := byPayer(held, known)
	share, excess := podShare(counts, size), podsHold(counts)-size/allPart
	if excess <= 0 {
		return 0, nil
	}
	type entry struct {
		key kernelCtKey
		of  owners
	}
	var unanswered, answered []entry
	err = each(ct, func(k kernelCtKey, v kernelCtValue) bool {
		of := ownersOf(v)
		if id := of.payer(known); id != 0 && counts[id] > share {
			if v.Flags&(ctSeenReply|ctService) == 0 {
				unanswered = append(unanswered, entry{k, of})
			} else {
				answered = append(answered, entry{k, of})
			}
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return 0, fmt.Errorf("conntrack: %w", err)
	}
	for _, e := range append(unanswered, answered...) {
		id := e.of.payer(known)
		if removed == excess || ctx.Err() != nil {
			break
		}
		if counts[id] <= share || held[e.of] == 0 {
			continue
		}
		if err := ct.Delete(e.key); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		} else if err != nil {
			return removed, fmt.Errorf("conntrack: take back what is beyond a share: %w", err)
		}
		counts[id]--
		held[e.of]--
		removed++
	}
	return removed, nil
}

// podShare returns the share that every endpoint has in any case.
func podShare(counts map[uint16]int, size int) int {
	share := size / podPart
	for ; share > size/podFloor; share /= 2 {
		sum := 0
		for id, n := range counts {
			if id != 0 {
				sum += min(n, share)
			}
		}
		if sum <= size/allPart {
			break
		}
	}
	return max(share, 1)
}

// FlowShares implements datapath.Maps.
func (m *Maps) FlowShares() ([]datapath.FlowShare, error) {
	known, err := m.incarnations()
	if err != nil {
		return nil, err
	}
	ids := []uint16{0}
	for _, id := range known {
		ids = append(ids, id)
	}
	var list []datapath.FlowShare
	for _, id := range ids {
		var account kernelCtAccount
		if err := m.maps[kernelMapCtAccounts].Lookup(uint32(id), &account); err != nil {
			return nil, fmt.Errorf("read the account of endpoint %d: %w", id, err)
		}
		list = append(list, datapath.FlowShare{
			Endpoint: id, Entries: int(account.Entries), Share: int(account.Share), Excess: int(account.Excess),
		})
	}
	return list, nil
}
