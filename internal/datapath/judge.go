package datapath

// Judge says what the rule set makes of a packet: ReasonForwarded, ReasonPolicyDenied or
// ReasonPolicyDeny. It is the rule of the package comment in its most literal form, slow and plain: the
// measure for the kernel's programs, and an explanation for people. Port is the ICMP type for ICMP; block
// is the identity of the block that the peer's address is in, 0 if it is in none.
func (rs RuleSet) Judge(dir Direction, identity, block uint32, proto uint8, port uint16) DropReason {
	one, oneFound := rs.mostSpecific(dir, identity, proto, port)
	anyone, anyoneFound := rs.mostSpecific(dir, 0, proto, port)
	at, atFound := rs.mostSpecific(dir, block, proto, port)
	switch {
	case oneFound && one.Deny, anyoneFound && anyone.Deny, atFound && at.Deny:
		return ReasonPolicyDeny
	case oneFound, anyoneFound, atFound:
		return ReasonForwarded
	case dir == Ingress && rs.IngressEnforced, dir == Egress && rs.EgressEnforced:
		return ReasonPolicyDenied
	}
	return ReasonForwarded
}

// mostSpecific finds the entry of exactly this identity that matches the packet with most port bits;
// one for any protocol is less specific than one for any port.
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
