package link

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Names in nftables.
const (
	nftTable = "hawser"
	nftChain = "postrouting"
	// setPlain begins the names of the sets of pods that are not masqueraded.
	setPlain = "unmasqueraded"
)

// masqFamily is what masquerading of one address family needs.
type masqFamily struct {
	v6            bool
	pods, cluster []netip.Prefix // canonical
	plain         []netip.Addr   // pods that keep their addresses, sorted
}

// masqRules is pure: what n asks for, without the pods in plain. The pods' own prefixes are never
// masqueraded towards each other, whether or not the cluster's include them.
func masqRules(n datapath.Node, plain []netip.Addr) []masqFamily {
	var out []masqFamily
	for _, f := range []struct{ on, v6 bool }{{n.Masquerade4, false}, {n.Masquerade6, true}} {
		if !f.on {
			continue
		}
		m := masqFamily{v6: f.v6}
		for _, p := range n.PodCIDRs {
			if p.Addr().Is6() == f.v6 {
				m.pods = append(m.pods, p)
				m.cluster = append(m.cluster, p)
			}
		}
		for _, p := range n.ClusterCIDRs {
			if p.Addr().Is6() == f.v6 {
				m.cluster = append(m.cluster, p)
			}
		}
		if len(m.pods) == 0 {
			continue
		}
		m.pods, m.cluster = disjoint(m.pods), disjoint(m.cluster)
		for _, ip := range plain {
			if ip.Is6() == f.v6 {
				m.plain = append(m.plain, ip)
			}
		}
		out = append(out, m)
	}
	return out
}

// disjoint masks and sorts prefixes and drops those inside others, since an interval set takes no
// overlaps.
func disjoint(in []netip.Prefix) []netip.Prefix {
	masked := make([]netip.Prefix, len(in))
	for i, p := range in {
		masked[i] = p.Masked()
	}
	slices.SortFunc(masked, netip.Prefix.Compare)
	var out []netip.Prefix
	for _, p := range masked {
		if len(out) > 0 && out[len(out)-1].Overlaps(p) {
			continue // sorted, so the earlier one is the wider
		}
		out = append(out, p)
	}
	return out
}

// fingerprint identifies the rule and its sets but for the pods that come and go; it is stored with
// the rule.
func (m masqFamily) fingerprint() []byte {
	h := sha256.New()
	fmt.Fprintf(h, "masquerade 3 %v %v %v", m.v6, m.pods, m.cluster)
	return h.Sum(nil)[:16]
}

func (m masqFamily) setName(kind string) string {
	if m.v6 {
		return kind + "6"
	}
	return kind + "4"
}

// nftBuffer is how large a transaction, and what the kernel answers, may be, in bytes: about 64 for
// each element of a set. More than the usual limit is sent by who has CAP_NET_ADMIN.
const nftBuffer = 64 << 20

func (l *Links) nft() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(l.ns.Fd())), nftables.WithSockOptions(func(c *mdnetlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(nftBuffer), c.SetReadBuffer(nftBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// SetUnmasqueraded has the packets of pods with these addresses leave the cluster under them, now
// and with every SetNode that follows, in place of the addresses it was last given. Flows that are
// translated already stay so.
func (l *Links) SetUnmasqueraded(pods []netip.Addr) error {
	l.nodeMu.Lock()
	defer l.nodeMu.Unlock()
	l.plain = slices.Clone(pods)
	slices.SortFunc(l.plain, netip.Addr.Compare)
	if l.node == nil {
		return nil
	}
	return l.reconcileMasquerade(*l.node)
}

// reconcileMasquerade makes our table hold what n asks for; networks of the cloud are not
// masqueraded. If more differs than the pods that are not masqueraded it is replaced whole in one
// transaction; flows already translated keep their translation, which is in conntrack. Where
// nothing has netfilter track connections there is no table: the tunnel and pods need no
// exceptions.
func (l *Links) reconcileMasquerade(n datapath.Node) error {
	if n.Interfaces && !l.vpcKnown {
		return nil // what an agent before this one excepted stays so until it is known
	}
	n.ClusterCIDRs = slices.Concat(n.ClusterCIDRs, l.vpc)
	want := nftRules{families: masqRules(n, l.plain), ports: portRules(n.MasqueradePorts)}
	// Masquerading, or kube-proxy, has netfilter track connections.
	if !l.plainTable && (n.KubeProxy || len(want.families) > 0) {
		want.tunnel, want.oneSided = untrackedPort(n), true
	}
	if len(want.families) == 0 && !want.oneSided {
		return l.removeMasquerade()
	}
	err := l.installTable(want)
	if err == nil || !want.oneSided {
		return err
	}
	// The exceptions need parts of nftables that a kernel may lack.
	want.tunnel, want.oneSided = 0, false
	if len(want.families) == 0 {
		l.removeMasquerade()
	} else if retry := l.installTable(want); retry != nil {
		return err
	}
	l.plainTable = true
	l.log.Warn("the kernel cannot leave pods' and the tunnel's packets out of connection tracking; connections between nodes are slower to open, "+
		"and rules that drop invalid packets, as kube-proxy's, drop those of pods", "error", err)
	return nil
}

// nftRules are what our table holds.
type nftRules struct {
	families []masqFamily
	ports    []portRule
	tunnel   uint16 // the port of the tunnel, whose packets are not tracked; 0 for none
	oneSided bool   // connections of which netfilter sees one side are not tracked
}

// installTable is one attempt.
func (l *Links) installTable(want nftRules) error {
	c, err := l.nft()
	if err != nil {
		return err
	}
	same, err := tableUnchanged(c, want)
	if err != nil {
		return err
	}
	if same {
		return l.updatePlain(c, want.families)
	}
	// Adding before deleting makes the deletion valid whether or not the table was there.
	table := &nftables.Table{Name: nftTable, Family: nftables.TableFamilyINet}
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	accept := nftables.ChainPolicyAccept
	chain := c.AddChain(&nftables.Chain{
		Name: nftChain, Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource, Policy: &accept,
	})
	addMasquerade(c, table)
	masqueraded := map[bool]masqSets{}
	for _, m := range want.families {
		if masqueraded[m.v6], err = m.add(c, table, chain); err != nil {
			return err
		}
	}
	if want.tunnel != 0 {
		addUntracked(c, table, want.tunnel)
	}
	if want.oneSided {
		addOneSided(c, table, masqueraded)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("install masquerading in nftables: %w", err)
	}
	return l.insertPortRules(want.ports)
}

// updatePlain makes the sets of pods that are not masqueraded hold what is wanted, in a table that
// is right otherwise.
func (l *Links) updatePlain(c *nftables.Conn, want []masqFamily) error {
	table := &nftables.Table{Name: nftTable, Family: nftables.TableFamilyINet}
	changed := false
	for _, m := range want {
		set, err := c.GetSetByName(table, m.setName(setPlain))
		if err != nil {
			return fmt.Errorf("read nftables set %s: %w", m.setName(setPlain), err)
		}
		elems, err := c.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("read nftables set %s: %w", set.Name, err)
		}
		if sameElements(elems, singles(m.plain)) {
			continue
		}
		changed = true
		c.FlushSet(set)
		if len(m.plain) == 0 {
			continue
		}
		if err := addElements(c, set, singles(m.plain)); err != nil {
			return err
		}
	}
	if !changed {
		return nil
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("change which pods are not masqueraded in nftables: %w", err)
	}
	return nil
}

// singles writes addresses as the elements of a set that is none of intervals.
func singles(ips []netip.Addr) []nftables.SetElement {
	var out []nftables.SetElement
	for _, ip := range ips {
		out = append(out, nftables.SetElement{Key: ip.AsSlice()})
	}
	return out
}

// elementsPerMessage bounds the elements that a message has: they are one attribute, of which the
// length has 16 bits, and neither library checks that.
const elementsPerMessage = 500

// addElements queues elements of a set.
func addElements(c *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	for part := range slices.Chunk(elements, elementsPerMessage) {
		if err := c.SetAddElements(set, part); err != nil {
			return fmt.Errorf("nftables set %s: %w", set.Name, err)
		}
	}
	return nil
}

// ofFamily matches packets of an address family.
func ofFamily(v6 bool) []expr.Any {
	proto := byte(unix.NFPROTO_IPV4)
	if v6 {
		proto = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
	}
}

// masqSets are the sets of one family.
type masqSets struct {
	v6                   bool
	pods, plain, cluster *nftables.Set
}

// from and to match packets whose source or destination is in a set, or is not.
func (m masqSets) from(set *nftables.Set, in bool) []expr.Any { return m.address(12, 8, set, in) }
func (m masqSets) to(set *nftables.Set, in bool) []expr.Any   { return m.address(16, 24, set, in) }

// address has the offsets in both headers.
func (m masqSets) address(v4, v6 uint32, set *nftables.Set, in bool) []expr.Any {
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: v4, Len: 4}
	if m.v6 {
		load.Offset, load.Len = v6, 16
	}
	return []expr.Any{load, &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID, Invert: !in}}
}

// leaving matches packets of pods that leave the cluster, and are masqueraded.
func (m masqSets) leaving() []expr.Any {
	exprs := slices.Concat(m.from(m.pods, true), m.from(m.plain, false), m.to(m.cluster, false))
	for _, prefix := range []string{"hawser_", EndpointPrefix} {
		exprs = append(exprs,
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte(prefix)})
	}
	return exprs
}

// add queues the sets and the rule of one family.
func (m masqFamily) add(c *nftables.Conn, table *nftables.Table, chain *nftables.Chain) (masqSets, error) {
	keyType := nftables.TypeIPAddr
	if m.v6 {
		keyType = nftables.TypeIP6Addr
	}
	// IDs are the transaction's. The library would count those of all connections, without a lock.
	id := uint32(0)
	if m.v6 {
		id = 3
	}
	sets := masqSets{
		v6:      m.v6,
		pods:    &nftables.Set{ID: id + 1, Table: table, Name: m.setName("pods"), KeyType: keyType, Interval: true},
		cluster: &nftables.Set{ID: id + 2, Table: table, Name: m.setName("cluster"), KeyType: keyType, Interval: true},
		plain:   &nftables.Set{ID: id + 3, Table: table, Name: m.setName(setPlain), KeyType: keyType},
	}
	for _, s := range []struct {
		set      *nftables.Set
		elements []nftables.SetElement
	}{{sets.pods, intervals(m.pods)}, {sets.cluster, intervals(m.cluster)}, {sets.plain, singles(m.plain)}} {
		if err := c.AddSet(s.set, nil); err != nil {
			return sets, fmt.Errorf("nftables set %s: %w", s.set.Name, err)
		}
		if err := addElements(c, s.set, s.elements); err != nil {
			return sets, err
		}
	}
	exprs := append(ofFamily(m.v6), sets.leaving()...)
	exprs = append(exprs, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: nftMasquerade})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs, UserData: m.userData()})
	return sets, nil
}

// userData is the fingerprint as the comment of a rule.
func (m masqFamily) userData() []byte {
	return ruleComment(fmt.Sprintf("hawser %x", m.fingerprint()))
}

// ruleComment writes a comment of a rule as nft itself does (type 0, length, text and its zero), so
// that it shows in "nft list ruleset".
func ruleComment(text string) []byte {
	text += "\x00"
	return append([]byte{0, byte(len(text))}, text...)
}

// intervals writes sorted, disjoint prefixes as the start and end elements that an interval set
// wants; neighbouring prefixes become one interval.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	var out []nftables.SetElement
	var end netip.Addr
	for i, p := range prefixes {
		if i == 0 || p.Addr() != end {
			if end.IsValid() {
				out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
			}
			out = append(out, nftables.SetElement{Key: p.Addr().AsSlice()})
		}
		end = after(p)
	}
	if end.IsValid() {
		out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
	}
	return out
}

// after returns the first address behind p; invalid if p reaches the end of the address space.
func after(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last.Next()
}

// tableUnchanged compares the rules' marks and the sets' elements with want, but for the pods that
// are not masqueraded.
func tableUnchanged(c *nftables.Conn, want nftRules) (bool, error) {
	table, err := c.ListTableOfFamily(nftTable, nftables.TableFamilyINet)
	if errors.Is(err, unix.ENOENT) || (err == nil && table == nil) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read nftables table %s: %w", nftTable, err)
	}
	chain, err := c.ListChain(table, nftChain)
	if err != nil || chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookPostrouting {
		return false, nil
	}
	var marks [][]byte
	for _, m := range want.families {
		marks = append(marks, m.userData())
	}
	if !hasRules(c, table, chain.Name, marks) || !hasRules(c, table, nftMasquerade, masqueradeMarks(want.ports)) ||
		!untrackedUnchanged(c, table, want.tunnel) || !oneSidedUnchanged(c, table, want.oneSided, want.families) {
		return false, nil
	}
	for _, m := range want.families {
		for kind, prefixes := range map[string][]netip.Prefix{"pods": m.pods, "cluster": m.cluster} {
			set, err := c.GetSetByName(table, m.setName(kind))
			if err != nil {
				return false, nil
			}
			elems, err := c.GetSetElements(set)
			if err != nil || !sameElements(elems, intervals(prefixes)) {
				return false, nil
			}
		}
		if _, err := c.GetSetByName(table, m.setName(setPlain)); err != nil {
			return false, nil
		}
	}
	return true, nil
}

// hasRules reports whether a chain has the rules with these comments, and no others.
func hasRules(c *nftables.Conn, table *nftables.Table, chain string, marks [][]byte) bool {
	rules, err := c.GetRules(table, &nftables.Chain{Name: chain})
	return err == nil && slices.EqualFunc(rules, marks, func(r *nftables.Rule, mark []byte) bool { return bytes.Equal(r.UserData, mark) })
}

func sameElements(have, want []nftables.SetElement) bool {
	key := func(e nftables.SetElement) string { return fmt.Sprintf("%x %v", e.Key, e.IntervalEnd) }
	left := map[string]int{}
	for _, e := range have {
		if e.IntervalEnd && len(bytes.Trim(e.Key, "\x00")) == 0 {
			continue // the kernel's own end of the address space
		}
		left[key(e)]++
	}
	for _, e := range want {
		left[key(e)]--
	}
	for _, n := range left {
		if n != 0 {
			return false
		}
	}
	return true
}

func (l *Links) removeMasquerade() error { return l.removeTable(nftTable) }

// RemoveGuard removes the nftables table by which agents before this one kept pods from addresses.
// The programs do that: it comes after them.
func (l *Links) RemoveGuard() error { return l.removeTable("hawser_guard") }

// removeTable removes a table of ours, if it is there.
func (l *Links) removeTable(name string) error {
	c, err := l.nft()
	if err != nil {
		return err
	}
	if _, err := c.ListTableOfFamily(name, nftables.TableFamilyINet); err != nil {
		// No such table, or a kernel without nftables: nothing of ours is there.
		return nil
	}
	c.DelTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nftables table %s: %w", name, err)
	}
	return nil
}
