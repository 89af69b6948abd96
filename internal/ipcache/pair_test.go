package ipcache

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/identity"
)

func TestPairWireFormat(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pair Pair
		key  string
		want string
	}{
		{
			Pair{
				Prefix: pfx("10.0.0.1/32"), Host: ip("192.0.2.1"), Identity: 300, EncryptKey: 3, Metadata: "cilium-global:default:n1:7",
				Namespace: "ns", Pod: "p", ServiceAccount: "sa", NamedPorts: []NamedPort{{"http", 80, "TCP"}},
			},
			"10.0.0.1",
			`{"IP":"10.0.0.1","Mask":null,"HostIP":"192.0.2.1","ID":300,"Key":3,"Metadata":"cilium-global:default:n1:7",` +
				`"K8sNamespace":"ns","K8sPodName":"p","K8sServiceAccount":"sa","NamedPorts":[{"Name":"http","Port":80,"Protocol":"TCP"}]}`,
		},
		{
			Pair{Prefix: pfx("fd00::7/128"), Host: ip("2001:db8::1"), Identity: 6},
			"fd00::7",
			`{"IP":"fd00::7","Mask":null,"HostIP":"2001:db8::1","ID":6,"Key":0,"Metadata":""}`,
		},
		{
			Pair{Prefix: pfx("10.1.0.0/16"), Identity: 300},
			"10.1.0.0/16",
			`{"IP":"10.1.0.0","Mask":"//8AAA==","HostIP":"","ID":300,"Key":0,"Metadata":""}`,
		},
	} {
		got, err := json.Marshal(tt.pair)
		if err != nil || string(got) != tt.want || tt.pair.Key() != tt.key {
			t.Errorf("key %s\ngot  %s (%v)\nwant %s", tt.pair.Key(), got, err, tt.want)
		}
		back, err := ParsePair(tt.key, got)
		if err != nil || !reflect.DeepEqual(back, tt.pair) {
			t.Errorf("read back %+v, %v", back, err)
		}
		if p, err := ParseKey(tt.key); p != tt.pair.Prefix || err != nil {
			t.Errorf("ParseKey(%s) = %v, %v", tt.key, p, err)
		}
	}
	p, err := ParsePair("192.0.2.1", []byte(`{"IP":"192.0.2.1","HostIP":"192.0.2.1","ID":1}`))
	if err != nil || p.Identity != identity.RemoteNode {
		t.Errorf("a host of elsewhere: %+v, %v", p, err)
	}
}

func TestParsePairRefuses(t *testing.T) {
	t.Parallel()
	ports := strings.TrimSuffix(strings.Repeat(`{"Port":1},`, maxNamedPorts+1), ",")
	for name, tt := range map[string]struct{ key, value, want string }{
		"another address":          {"10.0.0.2", `{"IP":"10.0.0.1","ID":300}`, `holds "10.0.0.1"`},
		"network as host":          {"10.0.0.0", `{"IP":"10.0.0.0","Mask":"////AA==","ID":300}`, "holds"},
		"host as network":          {"10.0.0.1/32", `{"IP":"10.0.0.1","Mask":"/////w==","ID":300}`, "mask"},
		"host bits":                {"10.0.0.1/24", `{"IP":"10.0.0.1","Mask":"////AA==","ID":300}`, "prefix"},
		"everything":               {"0.0.0.0/0", `{"IP":"0.0.0.0","Mask":"AAAAAA==","HostIP":"192.0.2.1","ID":300}`, "everything"},
		"everything of IPv6":       {"::/0", `{"IP":"::","Mask":"AAAAAAAAAAAAAAAAAAAAAA==","ID":300}`, "everything"},
		"odd spelling":             {"fd00:0::1", `{"IP":"fd00::1","ID":300}`, "holds"},
		"no address":               {"10.0.0.1", `{"ID":300}`, "no address"},
		"not JSON":                 {"10.0.0.1", `x`, "invalid character"},
		"mask of holes":            {"10.0.0.0/24", `{"IP":"10.0.0.0","Mask":"/wD/AA==","ID":300}`, "mask"},
		"mask of the wrong family": {"fd00::/24", `{"IP":"fd00::","Mask":"////AA==","ID":300}`, "mask"},
		"no identity":              {"10.0.0.1", `{"IP":"10.0.0.1","ID":0}`, "identity 0"},
		"local identity":           {"10.0.0.1", `{"IP":"10.0.0.1","ID":16777217}`, "16777217"},
		"negative":                 {"10.0.0.1", `{"IP":"10.0.0.1","ID":-1}`, "number -1"},
		"host is loopback":         {"10.0.0.1", `{"IP":"10.0.0.1","HostIP":"127.0.0.1","ID":300}`, "no address of a node"},
		"many ports":               {"10.0.0.1", `{"IP":"10.0.0.1","ID":300,"NamedPorts":[` + ports + `]}`, "named ports"},
		"too large":                {"10.0.0.1", `{"IP":"10.0.0.1","ID":300,"Metadata":"` + strings.Repeat("x", maxValue) + `"}`, "larger"},
	} {
		if _, err := ParsePair(tt.key, []byte(tt.value)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, tt.want)
		}
	}
	for _, key := range []string{"", "x", "10.0.0.1/32", "10.0.0.1/24", "::ffff:10.0.0.1", "fe80::1%eth0", "010.0.0.1", "10.0.0.0/08"} {
		if p, err := ParseKey(key); err == nil {
			t.Errorf("ParseKey(%q) = %v", key, p)
		}
	}
}

// TestPairPorts: ports that no policy can name take no memory, and the rest is spelt in one way.
func TestPairPorts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ports string
		want  []NamedPort
	}{
		{`{}`, nil},
		{strings.TrimSuffix(strings.Repeat(`{},`, maxNamedPorts), ","), nil},
		{`{"Name":"http","Port":80,"Protocol":"TCP"},{"Name":"dns-2","Port":53,"Protocol":"udp"},{"Name":"1st","Port":65535,"Protocol":"SCTP"}`,
			[]NamedPort{{"http", 80, "TCP"}, {"dns-2", 53, "UDP"}, {"1st", 65535, "SCTP"}}},
		{`{"Name":"","Port":80,"Protocol":"TCP"},{"Name":"fifteen-letters","Port":80,"Protocol":"TCP"},{"Name":"sixteen-letters-","Port":80,"Protocol":"TCP"}`,
			[]NamedPort{{"fifteen-letters", 80, "TCP"}}},
		{`{"Name":"http","Port":0,"Protocol":"TCP"},{"Name":"http","Port":80,"Protocol":""},{"Name":"http","Port":80,"Protocol":"ICMP"}`, nil},
		{`{"Name":"-a","Port":1,"Protocol":"TCP"},{"Name":"a-","Port":1,"Protocol":"TCP"},{"Name":"a--b","Port":1,"Protocol":"TCP"},` +
			`{"Name":"80","Port":1,"Protocol":"TCP"},{"Name":"HTTP","Port":1,"Protocol":"TCP"},{"Name":"a_b","Port":1,"Protocol":"TCP"},` +
			`{"Name":"http","Port":1,"Protocol":"TCP/1"}`, nil},
	} {
		p, err := ParsePair("10.0.0.1", []byte(`{"IP":"10.0.0.1","ID":300,"NamedPorts":[`+tt.ports+`]}`))
		if err != nil || !reflect.DeepEqual(p.NamedPorts, tt.want) || cap(p.NamedPorts) > 2*len(tt.want) {
			t.Errorf("%.200s: %v with room for %d, %v; want %v", tt.ports, p.NamedPorts, cap(p.NamedPorts), err, tt.want)
		}
	}
}

func FuzzParsePair(f *testing.F) {
	f.Add("10.0.0.1", []byte(`{"IP":"10.0.0.1","Mask":null,"HostIP":"192.0.2.1","ID":300,"Key":3,"Metadata":"m","NamedPorts":[{"Name":"http","Port":80,"Protocol":"TCP"}]}`))
	f.Add("10.1.0.0/16", []byte(`{"IP":"10.1.0.0","Mask":"//8AAA==","ID":1}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		prefix, keyErr := ParseKey(key)
		p, err := ParsePair(key, value)
		if err != nil {
			return
		}
		if keyErr != nil || prefix != p.Prefix {
			t.Fatalf("ParseKey(%q) = %v, %v; the pair has %v", key, prefix, keyErr, p.Prefix)
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParsePair(key, again)
		if err != nil || fmt.Sprintf("%+v", back) != fmt.Sprintf("%+v", p) {
			t.Fatalf("wrote %+v\nread  %+v (%v)", p, back, err)
		}
		c := New()
		if _, err := c.Upsert(p.Prefix, p.Claim(KVStore, "")); err != nil {
			t.Fatal(err)
		}
		if _, e, ok := c.Lookup(p.Prefix.Addr()); !ok || fmt.Sprintf("%+v", e.Claim()) != fmt.Sprintf("%+v", p.Claim(KVStore, "")) {
			t.Fatalf("claimed %+v\nfound   %+v", p.Claim(KVStore, ""), e.Claim())
		}
	})
}
