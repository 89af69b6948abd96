package oracle

import (
	"slices"
	"strings"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// What of an entry is not enforced as it is written makes what is granted less and what is denied
// more:
//
//   - An allow that something restricts which is not enforced (authentication, requirements, two
//     kinds of peers at once, ports and messages at once) matches nothing. Of a list of peers or
//     ports what is not understood is left out.
//   - A deny then matches all peers and ports. If only its peers are not understood it matches
//     all peers, if only its ports, all traffic of its peers.
//
// Whom the rule selects is isolated as ever.

// beyond is what an entry contains that is not enforced here.
type beyond struct {
	restricted bool
	lists      int // of peers, of kinds that are not supported
}

func present(lists ...bool) (n int) {
	for _, is := range lists {
		if is {
			n++
		}
	}
	return n
}

// refused returns what is in force of an entry, given what would be if all of it were understood.
func (x entry) refused(c clause) clause {
	kinds := x.beyond.lists + present(len(x.eps) > 0, len(x.cidrs) > 0, len(x.sets) > 0, len(x.entities) > 0)
	whole := !x.beyond.restricted && kinds <= 1 && (len(x.toPorts) == 0 || len(x.icmps) == 0)
	peersKnown := x.beyond.lists == 0 && !slices.ContainsFunc(x.sets, func(s v2.CIDRRule) bool { return s.CIDRGroupRef != "" })
	portsKnown := !slices.ContainsFunc(x.toPorts, func(pr v2.PortRule) bool { return layer7(pr) || slices.ContainsFunc(pr.Ports, unreadable) })
	if len(x.toPorts) > 0 { // messages with ports are not counted
		c.icmps = nil
	}
	switch {
	case !x.deny && !whole:
		c.allPeers, c.peers = false, nil
	case x.deny && !(whole && peersKnown):
		c.allPeers = true
	}
	if x.deny && !(whole && portsKnown) {
		c.anything = true
	}
	return c
}

// layer7 reports whether ports are restricted by what is in the connections.
func layer7(pr v2.PortRule) bool {
	return pr.Rules != nil || pr.Listener != nil || pr.OriginatingTLS != nil || pr.TerminatingTLS != nil || pr.ServerNames != nil
}

// unreadable reports whether a port is not understood.
func unreadable(p v2.PortProtocol) bool {
	zeros := len(p.Port) > 1 && strings.HasPrefix(p.Port, "0") && strings.Trim(p.Port, "0123456789") == ""
	return zeros || !slices.Contains([]string{"", "ANY", "TCP", "UDP", "SCTP"}, p.Protocol)
}
