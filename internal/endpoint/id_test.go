package endpoint

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestParseRef(t *testing.T) {
	t.Parallel()
	good := map[string]Ref{
		"17":                           {Kind: RefLocalID, Local: 17},
		"cilium-local:0":               {Kind: RefLocalID},
		"cilium-local:":                {Kind: RefLocalID},
		"cilium-local:65535":           {Kind: RefLocalID, Local: 65535},
		"cilium-global:c:n:4":          {Kind: RefGlobalID, Text: "c:n:4"},
		"cni-attachment-id:abc:eth0":   {Kind: RefAttachment, Text: "abc:eth0"},
		"cni-attachment-id:abc":        {Kind: RefAttachment, Text: "abc"},
		"cep-name:ns/pod":              {Kind: RefPodName, Text: "ns/pod"},
		"pod-name:ns/pod":              {Kind: RefPodName, Text: "ns/pod"},
		"ipv4:10.0.0.1":                {Kind: RefIP, Addr: netip.MustParseAddr("10.0.0.1")},
		"ipv6:fd00::1":                 {Kind: RefIP, Addr: netip.MustParseAddr("fd00::1")},
		"container-id:abc":             {Kind: RefContainerID, Text: "abc"},
		"container-name:web":           {Kind: RefContainerName, Text: "web"},
		"docker-endpoint:aa":           {Kind: RefDocker, Text: "aa"},
		"container-id:a:b/c with more": {Kind: RefContainerID, Text: "a:b/c with more"},
	}
	for in, want := range good {
		got, err := ParseRef(in)
		if err != nil || got != want {
			t.Errorf("ParseRef(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	bad := map[string]string{
		"":                   "nothing",
		"x":                  "not an ID",
		"-1":                 "not an ID",
		"cilium-local:65536": "largest",
		"ipv4:fd00::1":       "ipv4",
		"ipv6:10.0.0.1":      "ipv6",
		"ipv6:fe80::1%eth0":  "ipv6",
		"ipv4:nonsense":      "not an IP address",
		"cep-name:pod":       "namespace",
		"cep-name:/pod":      "namespace",
		"container-id:":      "nothing follows",
		"what:ever":          `"what"`,
	}
	for in, want := range bad {
		_, err := ParseRef(in)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseRef(%q): error %v, want ErrInvalid with %q", in, err, want)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"17", "cilium-local:1", "ipv4:10.0.0.1", "cep-name:a/b", "cni-attachment-id:a:b", ":::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := ParseRef(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v does not match ErrInvalid", err)
			}
			return
		}
		again, err := ParseRef(ref.String())
		if err != nil || again != ref {
			t.Fatalf("ParseRef(%q) = %+v, written back as %q, read as %+v, %v", s, ref, ref.String(), again, err)
		}
	})
}
