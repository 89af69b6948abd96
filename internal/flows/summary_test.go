package flows_test

import (
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
)

// TestSummary: flows have the summary that existing clients print for them.
func TestSummary(t *testing.T) {
	const ether6, six = "0a000000000b 0a000000000a 86dd", "fd000000000000000000000000000001 fd000000000000000000000000000002"
	for name, row := range map[string]struct{ frame, want string }{
		"an opening":            {syn, "TCP Flags: SYN"},
		"an answer":             {answered, "TCP Flags: SYN, ACK"},
		"no flags":              {strings.Replace(syn, "6002", "6000", 1), "TCP Flags: "},
		"all flags":             {strings.Replace(syn, "6002", "60ff", 1), "TCP Flags: SYN, ACK, RST, FIN, PSH, URG, ECE, CWR"},
		"UDP":                   {ether4 + "4500001c 00000000 40110000 0a01000a 0a01000b" + "9c40 0035 0008 0000", "UDP"},
		"SCTP":                  {ether4 + "45000020 00000000 40840000 0a01000a 0a01000b" + "9c40 0050 00000000 00000000", "SCTP"},
		"an echo":               {strings.Replace(pinged, "0000 0000 0001 0001", "0800 0000 0001 0001", 1), "ICMPv4 EchoRequest"},
		"an answer to an echo":  {pinged, "ICMPv4 EchoReply"},
		"a port that is closed": {strings.Replace(pinged, "0000 0000 0001 0001", "0303 0000 0001 0001", 1), "ICMPv4 DestinationUnreachable(Port)"},
		"an unknown code":       {strings.Replace(pinged, "0000 0000 0001 0001", "0363 0000 0001 0001", 1), "ICMPv4 DestinationUnreachable(Code: 99)"},
		"an unknown type":       {strings.Replace(pinged, "0000 0000 0001 0001", "4d06 0000 0001 0001", 1), "ICMPv4 77(6)"},
		"an echo of IPv6":       {ether6 + "60000000 0008 3a40" + six + "8000 0000 0001 0001", "ICMPv6 EchoRequest"},
		"a later fragment":      {ether4 + "45000020 00000010 40110000 0a01000a 0a01000b" + "00000000 00000000 00000000", "IPv4"},
		"another protocol":      {ether6 + "60000000 0008 3b40" + six + "0000 0000 0000 0000", "IPv6"},
		"a frame that is no IP": {"0180c200000e 0a000000000a 88cc 0207", "Ethernet"},
	} {
		ev := event(t, datapath.EventDrop, row.frame)
		ev.Reason = datapath.ReasonPolicyDenied
		if f := maker.Flow(ev); f.GetSummary() != row.want {
			t.Errorf("%s: %q, want %q (%v)", name, f.GetSummary(), row.want, f.GetL4())
		}
	}
}
