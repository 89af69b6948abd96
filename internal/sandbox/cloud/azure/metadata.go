package azure

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Token is what the metadata service gives managed identities.
const Token = "very-secret-token"

// Metadata returns the instance metadata service of a machine ("Azure Instance Metadata Service"):
// what it is, its interfaces, and tokens of its managed identity. Requests must say that they
// are meant for it.
func (c *Cloud) Metadata(machine string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata") != "true" || r.Header.Get("X-Forwarded-For") != "" {
			http.Error(w, `{"error":"Bad request. Required metadata header not specified"}`, http.StatusBadRequest)
			return
		}
		var answer any
		switch strings.TrimRight(r.URL.Path, "/") {
		case "/metadata/instance":
			answer = c.metadata(machine)
		case "/metadata/identity/oauth2/token":
			answer = map[string]string{"access_token": Token, "token_type": "Bearer", "resource": r.URL.Query().Get("resource"), "expires_in": "3600",
				"expires_on": strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)}
		}
		if answer == nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
}

func (c *Cloud) metadata(id string) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.machines[key(id)]
	if m == nil {
		return nil
	}
	var list []any
	for _, nic := range m.interfaces {
		i := c.interfaces.Now()[nic]
		var addrs []any
		for _, x := range i.Configs {
			addrs = append(addrs, map[string]string{"privateIpAddress": x.Address.String(), "publicIpAddress": ""})
		}
		s := c.subnet(i.Configs[0].Subnet)
		list = append(list, map[string]any{"macAddress": strings.ReplaceAll(i.MAC, "-", ""), "ipv4": map[string]any{
			"ipAddress": addrs, "subnet": []any{map[string]string{"address": s.CIDR.Addr().String(), "prefix": strconv.Itoa(s.CIDR.Bits())}},
		}})
	}
	return map[string]any{
		"compute": map[string]any{
			"azEnvironment": "AzurePublicCloud", "location": location, "name": m.name, "resourceGroupName": c.group, "resourceId": m.id,
			"subscriptionId": c.subscription, "vmScaleSetName": m.set, "vmSize": m.size, "zone": m.zone,
		},
		"network": map[string]any{"interface": list},
	}
}
