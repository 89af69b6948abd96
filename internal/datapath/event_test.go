package datapath_test

import (
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	eth4 = "0a000000000b 0a000000000a 0800"
	eth6 = "0a000000000b 0a000000000a 86dd"
	syn4 = eth4 + "4500002c 00000000 40060000 0a01000a 0a01000b" + "9c40 0050 00000000 00000000 6002 0000 00000000 020405b4"
	udp6 = eth6 + "60000000 0010 00 40 fd000001000000000000000000000010 fd000001000000000000000000000011" +
		"11 00 0104 00000000" + "9c40 0035 0008 0000"
)

func TestParsePacket(t *testing.T) {
	for _, row := range []struct{ name, frame, want string }{
		{"empty", "", "unreadable frame"},
		{"header only", eth4, "ipv4"},
		{"SYN", syn4, "10.1.0.10:40000 -> 10.1.0.11:80 tcp SYN"},
		{"UDP behind an extension header", udp6, "[fd00:1::10]:40000 -> [fd00:1::11]:53 udp"},
		{"ping", eth4 + "4500001c 00000000 40010000 0a01000a 0a01000b" + "0800 0000 0001 0001", "10.1.0.10 -> 10.1.0.11 icmp type 8 code 0"},
		{"later fragment", eth4 + "4500001c 00000010 40110000 0a01000a 0a01000b" + "0800 0000 0001 0001", "10.1.0.10 -> 10.1.0.11 udp fragment"},
		{"ARP", "ffffffffffff 0a000000000a 0806 0001 0800 06 04 0001 0a000000000a 0a01000a 000000000000 0a010001", "arp 10.1.0.10 asks for 10.1.0.1"},
		{"LLDP", "0180c200000e 0a000000000a 88cc 0207", "88cc"},
		{"a protocol without a name", eth4 + "45000014 00000000 40630000 0a01000a 0a01000b", "10.1.0.10 -> 10.1.0.11 99"},
	} {
		if got := datapath.ParsePacket(unhex(t, row.frame)).String(); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	for _, s := range []string{"", eth4, syn4, udp6} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		p := datapath.ParsePacket(frame)
		_ = p.String()
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back datapath.Packet
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if !reflect.DeepEqual(p, back) {
			t.Errorf("%+v came back as %+v", p, back)
		}
	})
}

func TestEventText(t *testing.T) {
	e := datapath.Event{
		Time: time.Date(2025, 1, 2, 3, 4, 5, 6000, time.UTC), Type: datapath.EventDrop, Program: datapath.ProgramFromPod,
		Direction: datapath.Egress, Reason: datapath.ReasonPolicyDenied, CTState: datapath.CTNew, Endpoint: 12,
		SrcIdentity: 1000, DstIdentity: 2, IfIndex: 7, Length: 58, Packet: datapath.ParsePacket(unhex(t, syn4)), Data: unhex(t, syn4),
	}
	want := "03:04:05.000006 drop policy-denied (from-pod, egress, new) endpoint 12 identity 1000 -> 2: 10.1.0.10:40000 -> 10.1.0.11:80 tcp SYN, 58 bytes"
	if got := e.String(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"type":"drop"`, `"reason":"policy-denied"`, `"direction":"egress"`, `"src":"10.1.0.10"`} {
		if !strings.Contains(string(b), part) {
			t.Errorf("%s lacks %s", b, part)
		}
	}
	var back datapath.Event
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(e, back) {
		t.Errorf("%+v\ncame back as\n%+v", e, back)
	}
	e.Type, e.Reason, e.Lost = datapath.EventVerdict, 0, 3
	if got := e.String(); !strings.Contains(got, "verdict allowed") || !strings.HasPrefix(got, "(3 events lost) ") {
		t.Errorf("verdict: %q", got)
	}
	e.Type, e.Outcome = datapath.EventTrace, datapath.OutcomeOverlay
	if got := e.String(); !strings.Contains(got, "trace to overlay") {
		t.Errorf("trace: %q", got)
	}
}

// Names are an interface: each number has one, no two share one, and each is read back.
func TestNames(t *testing.T) {
	seen := make(map[string]bool)
	for r := datapath.DropReason(0); r <= datapath.ReasonMTUExceeded; r++ {
		name := r.String()
		if seen[name] || strings.HasPrefix(name, "reason-") {
			t.Errorf("reason %d is called %q", r, name)
		}
		seen[name] = true
		var back datapath.DropReason
		if err := back.UnmarshalText([]byte(name)); err != nil || back != r {
			t.Errorf("%q read back as %d, %v", name, back, err)
		}
	}
	var d datapath.Direction
	if err := d.UnmarshalText([]byte("sideways")); err == nil {
		t.Error("accepted a direction that is none")
	}
}

func TestVerdict(t *testing.T) {
	key := func(dir datapath.Direction, identity uint32, proto uint8, port uint16, bits uint8) datapath.PolicyKey {
		return datapath.PolicyKey{Direction: dir, Identity: identity, Proto: proto, Port: port, PortBits: bits}
	}
	const block = datapath.BlockScope<<24 + 1
	rs := datapath.RuleSet{ID: 1, IngressEnforced: true, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{
		key(datapath.Ingress, 5, 6, 80, 16):   {Allow: true},
		key(datapath.Ingress, 5, 6, 0, 0):     {Deny: true},
		key(datapath.Ingress, 0, 17, 0, 0):    {Allow: true},
		key(datapath.Ingress, 7, 0, 0, 0):     {Deny: true},
		key(datapath.Egress, 5, 6, 8000, 11):  {Deny: true},
		key(datapath.Egress, 0, 6, 8001, 16):  {Allow: true},
		key(datapath.Ingress, 8, 132, 64, 10): {Allow: true},
		key(datapath.Ingress, block, 6, 0, 0): {Allow: true},
		key(datapath.Egress, block, 0, 0, 0):  {Deny: true},
	}}
	for _, row := range []struct {
		dir      datapath.Direction
		identity uint32
		block    uint32
		proto    uint8
		port     uint16
		want     datapath.DropReason
	}{
		{datapath.Ingress, 5, 0, 6, 80, datapath.ReasonForwarded},
		{datapath.Ingress, 5, 0, 6, 81, datapath.ReasonPolicyDeny},
		{datapath.Ingress, 6, 0, 6, 80, datapath.ReasonPolicyDenied},
		{datapath.Ingress, 6, 0, 17, 80, datapath.ReasonForwarded},
		{datapath.Ingress, 7, 0, 17, 80, datapath.ReasonPolicyDeny},
		{datapath.Egress, 5, 0, 6, 8031, datapath.ReasonPolicyDeny},
		{datapath.Egress, 5, 0, 6, 8001, datapath.ReasonPolicyDeny},
		{datapath.Egress, 6, 0, 6, 8001, datapath.ReasonForwarded},
		{datapath.Egress, 6, 0, 6, 8002, datapath.ReasonForwarded},
		{datapath.Ingress, 8, 0, 132, 127, datapath.ReasonForwarded},
		{datapath.Ingress, 8, 0, 132, 128, datapath.ReasonPolicyDenied},
		{datapath.Ingress, 6, block, 6, 80, datapath.ReasonForwarded},
		{datapath.Ingress, 6, block + 1, 6, 80, datapath.ReasonPolicyDenied},
		{datapath.Ingress, 7, block, 6, 80, datapath.ReasonPolicyDeny},
		{datapath.Egress, 6, block, 6, 8001, datapath.ReasonPolicyDeny},
	} {
		if got := rs.Verdict(row.dir, row.identity, row.block, row.proto, row.port); got != row.want {
			t.Errorf("%s identity %d block %d protocol %d port %d: %s, want %s", row.dir, row.identity, row.block, row.proto, row.port, got, row.want)
		}
	}
}

func TestCanonicalPrefix(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.77/24": "10.0.0.0/24", "::ffff:10.0.0.1/128": "10.0.0.1/32", "::ffff:10.0.0.1/104": "10.0.0.0/8",
		"fd00::7/64": "fd00::/64", "::/0": "::/0", "0.0.0.0/0": "0.0.0.0/0",
	} {
		got, err := datapath.CanonicalPrefix(netip.MustParsePrefix(in))
		if err != nil || got.String() != want {
			t.Errorf("%s is %s, %v; want %s", in, got, err, want)
		}
	}
	for _, bad := range []netip.Prefix{{}, netip.MustParsePrefix("::ffff:0:0/95")} {
		if got, err := datapath.CanonicalPrefix(bad); err == nil {
			t.Errorf("%s accepted as %s", bad, got)
		}
	}
}
