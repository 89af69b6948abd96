package restapi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/api/rest"
)

// A field of a request that would change what is enforced, and does not here, is refused by name.
// What plugins of the field send for a pod is taken.
func TestFieldsWithoutEffect(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][]string{
		`{"state":"waiting-for-identity","sync-build-endpoint":true,"netns-cookie":"1","pid":1,"labels":[],"datapath-configuration":{}}`:    nil,
		`{"datapath-configuration":{"external-ipam":true,"install-endpoint-route":true,"require-egress-prog":true,"require-routing":true}}`: nil,
		`{"properties":{"property-skip-masquerade-v4":false},"policy-enabled":false,"parent-interface-index":0}`:                            nil,
		`{"policy-enabled":true}`:         {"policy-enabled"},
		`{"is-secondary-interface":true}`: {"is-secondary-interface"},
		`{"parent-interface-index":3}`:    {"parent-interface-index"},
		`{"datapath-map-id":7}`:           {"datapath-map-id"},
		`{"properties":{"property-skip-masquerade-v4":true,"property-skip-masquerade-v6":true}}`: nil,
		`{"properties":{"property-skip-masquerade-v4":"yes","property-skip-bpf-policy":true}}`: {
			"properties.property-skip-masquerade-v4=yes", "properties.property-skip-bpf-policy"},
		`{"properties":{"other":"yes"}}`:                              {"properties.other"},
		`{"datapath-configuration":{"require-arp-passthrough":true}}`: {"datapath-configuration.require-arp-passthrough"},
		`{"datapath-configuration":{"require-routing":false}}`:        {"datapath-configuration.require-routing"},
		`{"datapath-configuration":{"disable-sip-verification":true},"policy-enabled":true}`: {
			"datapath-configuration.disable-sip-verification", "policy-enabled"},
	} {
		var m rest.EndpointChangeRequest
		if err := json.Unmarshal([]byte(body), &m); err != nil {
			t.Fatal(err)
		}
		err := withoutEffect(&m, false)
		if (err != nil) != (want != nil) {
			t.Errorf("%s: error %v", body, err)
		}
		for _, text := range want {
			if err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%s: the error does not say %q: %v", body, text, err)
			}
		}
	}
}
