package restapi

import (
	"fmt"
	"net/http"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/endpoint"
)

// optionAudit is the name of audit mode among the options of the agent and of endpoints.
const optionAudit = "PolicyAuditMode"

// parseAudit reads options of which audit mode is the only one there is; set means that it is among
// them.
func parseAudit(options rest.ConfigurationMap, whose string) (mode endpoint.AuditMode, set bool, err error) {
	for name, value := range options {
		if name != optionAudit {
			return "", false, server.Errorf(http.StatusBadRequest, "option %q cannot change while the agent runs; %s %s", name, whose, optionAudit)
		}
		if mode, err = endpoint.ParseAudit(value); err != nil {
			return "", false, server.Errorf(http.StatusBadRequest, "%s: %w", name, err)
		}
		set = true
	}
	return mode, set, nil
}

// auditOptions are the options of the agent that can change.
func (a *API) auditOptions() rest.ConfigurationMap {
	on, _ := a.Policy.Audit()
	return rest.ConfigurationMap{optionAudit: string(endpoint.AuditOf(on))}
}

// auditPart is a warning while there are endpoints whose policy refuses nothing.
func (a *API) auditPart() (part rest.PartStatus, there bool) {
	on, n := a.Policy.Audit()
	if !on && n == 0 {
		return rest.PartStatus{}, false
	}
	msg := fmt.Sprintf("endpoints in audit mode, whose policies refuse nothing: %d", n)
	if on {
		msg = "audit mode is on; " + msg
	}
	return rest.PartStatus{Name: "policy-audit", State: rest.StateWarning, Msg: msg}, true
}

// audited is a direction's word for what policy does to an endpoint that is in audit mode.
var audited = map[rest.EndpointPolicyEnabled]rest.EndpointPolicyEnabled{
	rest.EndpointPolicyEnabledBoth:    rest.EndpointPolicyEnabledAuditBoth,
	rest.EndpointPolicyEnabledIngress: rest.EndpointPolicyEnabledAuditIngress,
	rest.EndpointPolicyEnabledEgress:  rest.EndpointPolicyEnabledAuditEgress,
}
