package datapath

import (
	"fmt"
	"strconv"
	"strings"
)

// Protocol numbers (IANA) that policies can name and the datapath evaluates. ProtoAny is none of a
// packet.
const (
	ProtoAny    uint8 = 0
	ProtoICMP   uint8 = 1
	ProtoTCP    uint8 = 6
	ProtoUDP    uint8 = 17
	ProtoICMPv6 uint8 = 58
	ProtoSCTP   uint8 = 132
)

// ProtoName returns the name of a protocol number, or the number.
func ProtoName(p uint8) string {
	switch p {
	case ProtoAny:
		return "ANY"
	case ProtoICMP:
		return "ICMP"
	case ProtoTCP:
		return "TCP"
	case ProtoUDP:
		return "UDP"
	case ProtoICMPv6:
		return "ICMPv6"
	case ProtoSCTP:
		return "SCTP"
	}
	return strconv.Itoa(int(p))
}

// ParseProto reads what ProtoName writes, in upper or lower case.
func ParseProto(s string) (uint8, error) {
	switch strings.ToUpper(s) {
	case "ANY", "":
		return ProtoAny, nil
	case "ICMP":
		return ProtoICMP, nil
	case "TCP":
		return ProtoTCP, nil
	case "UDP":
		return ProtoUDP, nil
	case "ICMPV6":
		return ProtoICMPv6, nil
	case "SCTP":
		return ProtoSCTP, nil
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("protocol %q is not known", s)
	}
	return uint8(n), nil
}

// HasPorts reports whether a protocol is one whose ports a policy may name.
func HasPorts(p uint8) bool { return p == ProtoTCP || p == ProtoUDP || p == ProtoSCTP }

// ValidPortName reports whether s is a service name of RFC 6335: up to 15 letters (lower case
// here), digits and single hyphens, at least one letter, no hyphen at the ends.
func ValidPortName(s string) bool {
	if len(s) == 0 || len(s) > 15 || s[0] == '-' || s[len(s)-1] == '-' || strings.Contains(s, "--") {
		return false
	}
	letter := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z':
			letter = true
		case c >= '0' && c <= '9' || c == '-':
		default:
			return false
		}
	}
	return letter
}
