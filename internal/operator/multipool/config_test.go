package multipool

import (
	"fmt"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	c := Defaults()
	c.Create = "default=ipv4-cidrs:10.0.0.0/16,10.2.0.0/16;ipv4-mask-size:24;ipv6-cidrs:fd00::/104;ipv6-mask-size:120,edge=ipv4-cidrs:10.9.0.0/16;ipv4-mask-size:26\n six=ipv6-cidrs:fd01::/104;ipv6-mask-size:112;"
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	pools, _ := c.pools()
	var got []string
	for _, p := range pools {
		text := p.Name
		if f := p.Spec.IPv4; f != nil {
			text += fmt.Sprint(" ", f.CIDRs, f.MaskSize)
		}
		if f := p.Spec.IPv6; f != nil {
			text += fmt.Sprint(" ", f.CIDRs, f.MaskSize)
		}
		got = append(got, text)
	}
	if want := "default [10.0.0.0/16 10.2.0.0/16] 24 [fd00::/104] 120; edge [10.9.0.0/16] 26; six [fd01::/104] 112"; strings.Join(got, "; ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, "; "), want)
	}
	for text, fault := range map[string]string{
		"default": "is not of the form name=",
		"Default=ipv4-cidrs:10.0.0.0/16;ipv4-mask-size:24": `"Default" is no name of an object`,
		"a=ipv4-cidrs:10.0.0.0/16":                         "has no blocks of /0",
		"a=ipv4-cidrs:10.0.0.0/16;ipv4-mask-size:x":        `"x" is not a number`,
		"a=cidrs:10.0.0.0/16":                              `"cidrs" is none of`,
		"a=ipv4-mask-size:24":                              "has neither ipv4-cidrs nor ipv6-cidrs",
		"a=ipv4-cidrs:10.0.0.0/33;ipv4-mask-size:24":       `"10.0.0.0/33" is not a CIDR`,
		"a=ipv6-cidrs:fd00::/104;ipv6-mask-size:120 a=ipv6-cidrs:fd01::/104;ipv6-mask-size:120": `pool "a" is named twice`,
	} {
		c := Defaults()
		c.Create = text
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), fault) || !strings.Contains(err.Error(), "--"+createFlag) {
			t.Errorf("%s: %v; want %s", text, err, fault)
		}
	}
	c = Defaults()
	c.Default = ""
	if err := c.Validate(); err == nil {
		t.Error("no name of the default pool is fine")
	}
}
