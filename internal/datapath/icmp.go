package datapath

// ICMPTypes returns the message types that have names, by family. The names are those of the
// policy schema.
func ICMPTypes(v6 bool) map[string]uint8 {
	if v6 {
		return map[string]uint8{
			"DestinationUnreachable":                 1,
			"PacketTooBig":                           2,
			"TimeExceeded":                           3,
			"ParameterProblem":                       4,
			"EchoRequest":                            128,
			"EchoReply":                              129,
			"MulticastListenerQuery":                 130,
			"MulticastListenerReport":                131,
			"MulticastListenerDone":                  132,
			"RouterSolicitation":                     133,
			"RouterAdvertisement":                    134,
			"NeighborSolicitation":                   135,
			"NeighborAdvertisement":                  136,
			"RedirectMessage":                        137,
			"RouterRenumbering":                      138,
			"ICMPNodeInformationQuery":               139,
			"ICMPNodeInformationResponse":            140,
			"InverseNeighborDiscoverySolicitation":   141,
			"InverseNeighborDiscoveryAdvertisement":  142,
			"HomeAgentAddressDiscoveryRequest":       144,
			"HomeAgentAddressDiscoveryReply":         145,
			"MobilePrefixSolicitation":               146,
			"MobilePrefixAdvertisement":              147,
			"DuplicateAddressRequestCodeSuffix":      157,
			"DuplicateAddressConfirmationCodeSuffix": 158,
			"ExtendedEchoRequest":                    160,
			"ExtendedEchoReply":                      161,
		}
	}
	return map[string]uint8{
		"EchoReply":              0,
		"DestinationUnreachable": 3,
		"Redirect":               5,
		"Echo":                   8,
		"EchoRequest":            8,
		"RouterAdvertisement":    9,
		"RouterSelection":        10,
		"TimeExceeded":           11,
		"ParameterProblem":       12,
		"Timestamp":              13,
		"TimestampReply":         14,
		"Photuris":               40,
		"ExtendedEcho Request":   42,
		"ExtendedEcho Reply":     43,
	}
}

// ICMPUnderPolicy reports whether policy decides about messages of a type. The programs decide
// about others: errors pass if they are about a packet of a known flow, and neighbour discovery and
// redirects never leave a link (parse_icmp4 and parse_icmp6 of bpf/lib/packet.h).
func ICMPUnderPolicy(v6 bool, typ uint8) bool {
	if v6 {
		return (typ < 1 || typ > 4) && (typ < 133 || typ > 137)
	}
	return typ != 3 && typ != 5 && typ != 11 && typ != 12
}
