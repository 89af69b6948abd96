package alibaba

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	tokenHeader = "X-aliyun-ecs-metadata-token"
	ttlHeader   = "X-aliyun-ecs-metadata-token-ttl-seconds"
)

// Metadata returns the instance metadata service of an instance in its security hardening mode
// ("Access instance metadata"): a token by PUT, and with it what the instance is.
func (c *Cloud) Metadata(instance string) http.Handler {
	var mu sync.Mutex
	tokens := map[string]time.Time{} // until when
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/latest/api/token" {
			ttl, err := strconv.Atoi(r.Header.Get(ttlHeader))
			if r.Method != http.MethodPut || err != nil || ttl < 1 || ttl > 21600 || r.Header.Get("X-Forwarded-For") != "" {
				http.Error(w, "Bad Request", http.StatusBadRequest)
				return
			}
			token := fmt.Sprintf("token-%s-%d", instance, len(tokens))
			tokens[token] = time.Now().Add(time.Duration(ttl) * time.Second)
			fmt.Fprint(w, token)
			return
		}
		if !time.Now().Before(tokens[r.Header.Get(tokenHeader)]) {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		v, ok := c.metadata(instance)[strings.TrimPrefix(r.URL.Path, "/latest/meta-data/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, v)
	})
}

func (c *Cloud) metadata(id string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.instances[id]
	if in == nil {
		return nil
	}
	s := c.vswitches[in.vswitch]
	out := map[string]string{
		"instance-id": id, "instance/instance-type": in.kind, "zone-id": s.zone, "region-id": strings.TrimRight(s.zone, "abcdef"),
		"vpc-id": s.vpc, "vswitch-id": s.id, "vswitch-cidr-block": s.CIDR.String(), "vpc-cidr-block": c.vpcs[s.vpc][0].String(),
	}
	for _, i := range c.interfaces.Now() {
		if i.Instance != id {
			continue
		}
		if i.Main {
			out["mac"], out["private-ipv4"] = i.MAC, i.Primary.String()
		}
		at := "network/interfaces/macs/" + i.MAC + "/"
		out[at+"network-interface-id"], out[at+"vswitch-id"], out[at+"primary-ip-address"] = i.ID, i.VSwitch, i.Primary.String()
	}
	return out
}
