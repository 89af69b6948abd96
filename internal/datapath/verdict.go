package datapath

// Verdict returns the rule set's verdict for a packet: ReasonForwarded, ReasonPolicyDenied or
// ReasonPolicyDeny. It is the algorithm of the package comment, written as plainly as possible:
// tests compare the kernel's programs with it. Port is the ICMP type for ICMP; block is the
// identity of the block that the peer's address is in, 0 if it is in none.
func (rs RuleSet) Verdict(dir Direction, identity, block uint32, proto uint8, port uint16) DropReason {
	var found []PolicyEntry
	for _, who := range []uint32{identity, 0, block} {
		if e, ok := rs.mostSpecific(dir, who, proto, port); ok {
			found = append(found, e)
		}
	}
	switch firstOf(found, func(e PolicyEntry) TierRule { return e.Admin }) {
	case TierAccept:
		return ReasonForwarded
	case TierDeny:
		return ReasonPolicyDeny
	}
	allowed := false
	for _, e := range found {
		if e.Deny {
			return ReasonPolicyDeny
		}
		allowed = allowed || e.Allow
	}
	if allowed {
		return ReasonForwarded
	}
	switch firstOf(found, func(e PolicyEntry) TierRule { return e.Baseline }) {
	case TierAccept:
		return ReasonForwarded
	case TierDeny:
		return ReasonPolicyDeny
	}
	if dir == Ingress && rs.IngressEnforced || dir == Egress && rs.EgressEnforced {
		return ReasonPolicyDenied
	}
	return ReasonForwarded
}

// firstOf returns what the first rule of a tier does.
func firstOf(entries []PolicyEntry, of func(PolicyEntry) TierRule) TierAction {
	var first TierRule
	for _, e := range entries {
		if r := of(e); r != 0 && (first == 0 || r < first) {
			first = r
		}
	}
	return first.Action()
}

// mostSpecific finds the entry of exactly this identity that matches the packet with most port
// bits; one for any protocol is less specific than one for any port.
func (rs RuleSet) mostSpecific(dir Direction, identity uint32, proto uint8, port uint16) (best PolicyEntry, found bool) {
	bestBits := -2
	for k, e := range rs.Entries {
		if k.Direction != dir || k.Identity != identity {
			continue
		}
		bits := -1
		if k.Proto != 0 {
			bits = int(k.PortBits)
			if k.Proto != proto || port&PortMask(k.PortBits) != k.Port {
				continue
			}
		}
		if bits > bestBits {
			bestBits, best, found = bits, e, true
		}
	}
	return best, found
}
