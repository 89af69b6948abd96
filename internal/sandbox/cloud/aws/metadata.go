package aws

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Metadata returns the instance metadata service of an instance, version 2 only: a token by PUT,
// and with it what the Amazon EC2 User Guide lists under "Instance metadata categories", as far as
// networks go.
func (c *Cloud) Metadata(instance string) http.Handler {
	return &metadata{cloud: c, instance: instance, tokens: map[string]time.Time{}}
}

type metadata struct {
	cloud    *Cloud
	instance string

	mu     sync.Mutex
	serial int
	tokens map[string]time.Time // until when
}

const (
	tokenHeader = "X-aws-ec2-metadata-token"
	ttlHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
)

func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/latest/api/token" {
		m.token(w, r)
		return
	}
	m.mu.Lock()
	ok := time.Now().Before(m.tokens[r.Header.Get(tokenHeader)])
	m.mu.Unlock()
	if !ok {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	all, ok := m.values()
	path := strings.Trim(strings.TrimPrefix(r.URL.Path, "/latest/"), "/")
	if v, is := all[path]; ok && is {
		fmt.Fprint(w, v)
		return
	}
	var below []string
	for k := range all {
		if rest, is := strings.CutPrefix(k, path+"/"); is {
			if head, _, more := strings.Cut(rest, "/"); more {
				rest = head + "/"
			}
			below = append(below, rest)
		}
	}
	if len(below) == 0 {
		http.NotFound(w, r)
		return
	}
	slices.Sort(below)
	fmt.Fprint(w, strings.Join(slices.Compact(below), "\n"))
}

func (m *metadata) token(w http.ResponseWriter, r *http.Request) {
	ttl, err := strconv.Atoi(r.Header.Get(ttlHeader))
	switch {
	case r.Method != http.MethodPut:
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
	case err != nil || ttl < 1 || ttl > 21600 || r.Header.Get("X-Forwarded-For") != "":
		http.Error(w, "Bad Request", http.StatusBadRequest)
	default:
		m.mu.Lock()
		m.serial++
		text := fmt.Sprintf("token-%s-%d", m.instance, m.serial)
		m.tokens[text] = time.Now().Add(time.Duration(ttl) * time.Second)
		m.mu.Unlock()
		w.Header().Set(ttlHeader, strconv.Itoa(ttl))
		fmt.Fprint(w, text)
	}
}

// values are all that can be read, by path.
func (m *metadata) values() (map[string]string, bool) {
	c := m.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.instances[m.instance]
	if in == nil {
		return nil, false
	}
	s := c.subnets[in.subnet]
	out := map[string]string{
		"meta-data/instance-id": in.id, "meta-data/instance-type": in.kind, "meta-data/placement/availability-zone": s.zone,
		"meta-data/placement/region": strings.TrimRight(s.zone, "abcdef"),
	}
	document, err := json.Marshal(map[string]string{
		"instanceId": in.id, "instanceType": in.kind, "availabilityZone": s.zone, "region": strings.TrimRight(s.zone, "abcdef"),
	})
	if err == nil {
		out["dynamic/instance-identity/document"] = string(document)
	}
	for _, i := range c.interfaces.Now() {
		if i.Instance != in.id {
			continue
		}
		s := c.subnets[i.Subnet]
		if i.Index == 0 {
			out["meta-data/mac"], out["meta-data/local-ipv4"] = i.MAC, i.Primary.String()
		}
		at := "meta-data/network/interfaces/macs/" + i.MAC + "/"
		out[at+"interface-id"], out[at+"device-number"], out[at+"mac"] = i.ID, strconv.Itoa(i.Index), i.MAC
		out[at+"subnet-id"], out[at+"subnet-ipv4-cidr-block"], out[at+"vpc-id"] = s.id, s.CIDR.String(), s.vpc
		out[at+"vpc-ipv4-cidr-block"] = c.vpcs[s.vpc][0].String()
		out[at+"security-group-ids"] = strings.Join(i.Groups, "\n")
		addrs, cidrs := []string{i.Primary.String()}, []string{}
		for _, a := range i.Addresses {
			addrs = append(addrs, a.String())
		}
		for _, p := range c.vpcs[s.vpc] {
			cidrs = append(cidrs, p.String())
		}
		out[at+"local-ipv4s"], out[at+"vpc-ipv4-cidr-blocks"] = strings.Join(addrs, "\n"), strings.Join(cidrs, "\n")
		c.metadataIPv6(out, at, i)
	}
	return out, true
}
