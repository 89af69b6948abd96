package link

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link/netdump"
)

// Numbers of rules and tables for pods whose addresses are an interface's, as Cilium has them:
// packets to a pod use the main table, which has its interface, before anything else is asked;
// packets from it by its own interface's, after rules of the administrator's.
const (
	ingressPriority = 20
	egressPriority  = 111
	// tableOffset is the table of interface number 0.
	tableOffset = 10
)

// rule is a rule of ours (ip-rule(8)). It is comparable; one that is about any source or
// destination has the zero Prefix there, and never both.
type rule struct {
	src, dst        netip.Prefix
	priority, table int
}

func (r rule) v6() bool {
	if r.src.IsValid() {
		return r.src.Addr().Is6()
	}
	return r.dst.Addr().Is6()
}

func (r rule) String() string {
	from, to := "all", ""
	if r.src.IsValid() {
		from = r.src.String()
	}
	if r.dst.IsValid() {
		to = " to " + r.dst.String()
	}
	return fmt.Sprintf("%d: from %s%s table %d", r.priority, from, to, r.table)
}

// request builds the message that adds or removes r.
func (r rule) request(typ, flags int, ignore ...syscall.Errno) *request {
	verb := "add"
	if typ == unix.RTM_DELRULE {
		verb = "remove"
	}
	req := newRequest(verb+" rule "+r.String(), typ, flags, ignore...)
	msg := nl.NewRtMsg() // struct fib_rule_hdr has the same layout, with the action as its type
	msg.Family = unix.AF_INET
	if r.v6() {
		msg.Family = unix.AF_INET6
	}
	msg.Table, msg.Protocol, msg.Scope, msg.Type = uint8(r.table), 0, 0, nl.FR_ACT_TO_TBL
	req.AddData(msg)
	if r.src.IsValid() {
		msg.Src_len = uint8(r.src.Bits())
		req.attr(nl.FRA_SRC, r.src.Addr().AsSlice())
	}
	if r.dst.IsValid() {
		msg.Dst_len = uint8(r.dst.Bits())
		req.attr(nl.FRA_DST, r.dst.Addr().AsSlice())
	}
	req.attr(nl.FRA_PRIORITY, nl.Uint32Attr(uint32(r.priority)))
	req.attr(nl.FRA_PROTOCOL, nl.Uint8Attr(RouteProtocol))
	return req
}

// paths is what leads packets from pods to their interfaces.
type paths struct {
	routes []route
	rules  []rule
}

// pathsOf is pure: the routes and rules of an interface.
func pathsOf(c *cloudInterface) (p paths) {
	table := tableOffset + c.Number
	for _, s := range c.Subnets {
		v6, gw := s.CIDR.Addr().Is6(), s.Router()
		if !gw.IsLinkLocalUnicast() || !v6 {
			p.routes = append(p.routes, route{dst: netip.PrefixFrom(gw, gw.BitLen()), dev: c.index(), table: table})
		}
		p.routes = append(p.routes, route{dst: everywhere(v6), gw: gw, dev: c.index(), table: table})
		vpc := slices.DeleteFunc(slices.Clone(c.VPCCIDRs), func(d netip.Prefix) bool { return d.Addr().Is6() != v6 })
		for _, pod := range c.Pods {
			if pod.Addr().Is6() != v6 {
				continue
			}
			p.rules = append(p.rules, rule{dst: pod, priority: ingressPriority, table: unix.RT_TABLE_MAIN})
			for _, d := range disjoint(vpc) {
				if d.Bits() > 0 {
					p.rules = append(p.rules, rule{src: pod, dst: d, priority: egressPriority, table: table})
				}
			}
			if len(vpc) == 0 || slices.ContainsFunc(vpc, func(d netip.Prefix) bool { return d.Bits() == 0 }) {
				p.rules = append(p.rules, rule{src: pod, priority: egressPriority, table: table})
			}
		}
	}
	return p
}

// ourRules lists the rules that carry our protocol number.
func (l *Links) ourRules() ([]rule, error) {
	var out []rule
	for _, fam := range l.families() {
		list, err := netdump.List(func() ([]netlink.Rule, error) { return l.h.RuleList(fam) })
		if err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		for _, nr := range list {
			if nr.Protocol != RouteProtocol || nr.Src == nil && nr.Dst == nil {
				continue
			}
			r := rule{priority: nr.Priority, table: nr.Table}
			if nr.Src != nil {
				r.src, err = fromIPNet(nr.Src, fam)
			}
			if nr.Dst != nil && err == nil {
				r.dst, err = fromIPNet(nr.Dst, fam)
			}
			if err != nil {
				return nil, fmt.Errorf("rule %d: %w", nr.Priority, err)
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// change is a request and the interface that it is for.
type change struct {
	index int
	*request
}

// additions is pure: what is to be made for the interfaces that are ready, routes before the rules
// that lead to them.
func additions(found []*cloudInterface, have paths) (out []change) {
	type place struct {
		table int
		dst   netip.Prefix
	}
	routes, taken, rules := map[route]bool{}, map[place]bool{}, map[rule]bool{}
	for _, r := range have.routes {
		routes[r], taken[place{r.table, r.dst}] = true, true
	}
	for _, r := range have.rules {
		rules[r] = true
	}
	for _, c := range found {
		if !c.ready {
			continue
		}
		p := pathsOf(c)
		for _, r := range p.routes {
			if routes[r] {
				continue
			}
			flags := unix.NLM_F_CREATE | unix.NLM_F_EXCL
			if taken[place{r.table, r.dst}] {
				flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
			}
			out = append(out, change{c.index(), r.request(unix.RTM_NEWROUTE, flags)})
		}
		for _, r := range p.rules {
			if !rules[r] {
				// An equal rule of another program does the same.
				out = append(out, change{c.index(), r.request(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, unix.EEXIST)})
			}
		}
	}
	return out
}

// removals is pure: what is to be removed of what is there, rules before the routes that they lead
// to. What an interface has that is not ready stays.
func removals(found []*cloudInterface, have paths) (out []*request) {
	routes, rules := map[route]bool{}, map[rule]bool{}
	for _, c := range found {
		p := pathsOf(c)
		for _, r := range p.routes {
			routes[r] = true
		}
		for _, r := range p.rules {
			rules[r] = true
		}
	}
	for _, r := range have.rules {
		if !rules[r] {
			out = append(out, r.request(unix.RTM_DELRULE, 0, unix.ENOENT))
		}
	}
	// Routes that others lean on (a gateway's own) go last.
	slices.SortFunc(have.routes, func(a, b route) int { return cmp.Compare(a.dst.Bits(), b.dst.Bits()) })
	for _, r := range have.routes {
		if !routes[r] {
			out = append(out, r.request(unix.RTM_DELROUTE, 0, unix.ESRCH, unix.ENODEV, unix.ENOENT))
		}
	}
	return out
}

// reconcilePaths makes our rules, and our routes outside of the main table, those of the interfaces
// found. It returns by index what failed, whether there may be some left of others, and all errors
// joined.
//
// Additions come first: an address that has moved to another interface is led there before the rule
// of the old one goes.
func (l *Links) reconcilePaths(found []*cloudInterface) (failed map[int]error, left bool, err error) {
	var have paths
	if have.routes, err = l.ourRoutes(true); err != nil {
		return nil, true, err
	}
	if have.rules, err = l.ourRules(); err != nil {
		return nil, true, err
	}
	failed = map[int]error{}
	var errs []error
	add := additions(found, have)
	reqs := make([]*request, len(add))
	for n, c := range add {
		reqs[n] = c.request
	}
	for n, err := range l.rt.run(reqs...) {
		if errors.Is(err, unix.EEXIST) {
			err = fmt.Errorf("%s: a route that is not Hawser's is in the way: remove it: %w", add[n].what, err)
		}
		if err != nil {
			failed[add[n].index] = errors.Join(failed[add[n].index], err)
			errs = append(errs, err)
		}
	}
	rest := errors.Join(l.rt.run(removals(found, have)...)...)
	return failed, rest != nil, errors.Join(append(errs, rest)...)
}

// removePaths removes all rules of ours, and the tables that they lead to.
func (l *Links) removePaths() error {
	_, _, err := l.reconcilePaths(nil)
	return err
}

// leaveCloud removes once what an agent before this one has left, if n has no interfaces of a
// cloud.
func (l *Links) leaveCloud(n datapath.Node) error {
	if n.Interfaces || l.pathsGone {
		return nil
	}
	err := l.removePaths()
	l.pathsGone = err == nil
	return err
}

// isOurRule reports whether a message is about a rule of ours.
func isOurRule(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofRtMsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
	if err != nil {
		return false
	}
	return slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == nl.FRA_PROTOCOL && len(a.Value) > 0 && a.Value[0] == RouteProtocol
	})
}

// isOurTable reports whether a message is about a route of ours outside of the main table.
func isOurTable(m syscall.NetlinkMessage) bool {
	const table, protocol = 4, 5 // of struct rtmsg, see rtnetlink(7)
	return len(m.Data) >= unix.SizeofRtMsg && m.Data[protocol] == RouteProtocol && m.Data[table] != unix.RT_TABLE_MAIN
}

// linkOf returns the index and hardware address in a message about an interface.
func linkOf(m syscall.NetlinkMessage) (index int, mac []byte) {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return 0, nil
	}
	index = int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return index, nil
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_ADDRESS {
			mac = a.Value
		}
	}
	return index, mac
}
