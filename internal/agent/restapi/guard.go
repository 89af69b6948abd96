package restapi

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/validate"
)

// StartupGate keeps endpoint requests out until the deletions that were queued while no agent ran
// are done: an endpoint must not come back to life between the two.
type StartupGate struct {
	gate chan struct{}
	once sync.Once
}

// NewStartupGate returns one that is closed.
func NewStartupGate() *StartupGate { return &StartupGate{gate: make(chan struct{})} }

// Open lets requests in. It may be called again.
func (f *StartupGate) Open() { f.once.Do(func() { close(f.gate) }) }

// Wait returns when it is open, or ctx ends.
func (f *StartupGate) Wait(ctx context.Context) error {
	select {
	case <-f.gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gated are the operations that change endpoints or addresses.
var gated = []string{"CreateEndpoint", "PatchEndpoint", "DeleteEndpoint", "DeleteEndpoints", "PatchEndpointConfig", "PatchEndpointLabels", "AllocateIP", "ReserveIP", "ReleaseIP"}

// Guard answers 503 while it is closed: clients try again, and the plugin queues.
func (f *StartupGate) Guard(next server.StrictHandlerFunc, operation string) server.StrictHandlerFunc {
	if !slices.Contains(gated, operation) {
		return next
	}
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, req any) (any, error) {
		select {
		case <-f.gate:
			return next(ctx, w, r, req)
		default:
			return nil, server.Errorf(http.StatusServiceUnavailable, "the agent is still doing what was queued while it was down; try again in a moment")
		}
	}
}

// GuardAccess answers 403 to operations that the configuration does not allow.
func GuardAccess(allowed []string) server.StrictMiddlewareFunc {
	return func(next server.StrictHandlerFunc, operation string) server.StrictHandlerFunc {
		if mayCall(allowed, operation) {
			return next
		}
		return func(context.Context, http.ResponseWriter, *http.Request, any) (any, error) {
			return nil, server.Errorf(http.StatusForbidden, "%s", switchedOff(operation))
		}
	}
}

// GuardPods answers 501 to operations that have to do with pods of a node that has none: it only
// balances.
func GuardPods(mode string) server.StrictMiddlewareFunc {
	return func(next server.StrictHandlerFunc, operation string) server.StrictHandlerFunc {
		if mode != string(rest.DatapathModeLbOnly) || !slices.Contains(forPods, operation) {
			return next
		}
		return func(context.Context, http.ResponseWriter, *http.Request, any) (any, error) {
			return nil, server.Errorf(http.StatusNotImplemented, "%s: this node has no pods and gives out no addresses, as the agent's --datapath-mode is %s: it only leads clients to services",
				operation, mode)
		}
	}
}

// forPods are the operations that attach a pod.
var forPods = []string{"CreateEndpoint", "AllocateIP", "ReserveIP", "ReleaseIP"}

// CheckAccess checks what --enable-cilium-api-server-access allows: a name that is misspelt would
// switch an operation off that was to be served.
func CheckAccess(allowed []string) error {
	const flag = "enable-cilium-api-server-access"
	var errs validate.Errors
	all := operations()
	for _, pattern := range allowed {
		switch {
		case slices.ContainsFunc(all, func(operation string) bool { return matches(pattern, operation) }):
		case strings.HasSuffix(pattern, "*"):
			errs.Add("--%s: no operation begins as %q; there are %s", flag, pattern, strings.Join(all, ", "))
		default:
			errs.Add("--%s: %q is no operation; there are %s", flag, pattern, strings.Join(all, ", "))
		}
	}
	return errs.Err()
}

// operations returns the names of all operations.
func operations() []string {
	api := reflect.TypeFor[server.StrictServerInterface]()
	var out []string
	for i := range api.NumMethod() {
		out = append(out, api.Method(i).Name)
	}
	return out
}

// mayCall reports whether the configuration allows an operation.
func mayCall(allowed []string, operation string) bool {
	return slices.ContainsFunc(allowed, func(pattern string) bool { return matches(pattern, operation) })
}

// matches reports whether a pattern names an operation: it is the name, or its beginning and a *. A
// name that Cilium's agent gives to one operation and this one to another means the latter.
func matches(pattern, operation string) bool {
	also := ciliumNames[operation]
	beginning, some := strings.CutSuffix(pattern, "*")
	if some {
		return strings.HasPrefix(operation, beginning) || also != "" && strings.HasPrefix(also, beginning)
	}
	return pattern == operation || pattern == also && !slices.Contains(operations(), also)
}

// ciliumNames are how the option of Cilium's agent names operations: after method and path. What
// only this agent has is not among them.
var ciliumNames = map[string]string{
	"GetHealthz":            "GetHealthz",
	"GetConfig":             "GetConfig",
	"PatchConfig":           "PatchConfig",
	"AllocateIP":            "PostIPAM",
	"ReserveIP":             "PostIPAMIP",
	"ReleaseIP":             "DeleteIPAMIP",
	"ListEndpoints":         "GetEndpoint",
	"DeleteEndpoints":       "DeleteEndpoint",
	"GetEndpoint":           "GetEndpointID",
	"CreateEndpoint":        "PutEndpointID",
	"PatchEndpoint":         "PatchEndpointID",
	"DeleteEndpoint":        "DeleteEndpointID",
	"GetEndpointConfig":     "GetEndpointIDConfig",
	"PatchEndpointConfig":   "PatchEndpointIDConfig",
	"GetEndpointLabels":     "GetEndpointIDLabels",
	"PatchEndpointLabels":   "PatchEndpointIDLabels",
	"GetEndpointLog":        "GetEndpointIDLog",
	"GetEndpointHealth":     "GetEndpointIDHealthz",
	"ListIdentities":        "GetIdentity",
	"ListIdentityEndpoints": "GetIdentityEndpoints",
	"GetIdentity":           "GetIdentityID",
	"ListIPs":               "GetIP",
	"ListServices":          "GetService",
	"GetPolicy":             "GetPolicy",
	"ListSelectors":         "GetPolicySelectors",
	"ListSubjectSelectors":  "GetPolicySubjectSelectors",
	"ListNodeIDs":           "GetNodeIds",
	"GetClusterNodes":       "GetClusterNodes",
	"ListMaps":              "GetMap",
	"GetMap":                "GetMapName",
	"ListMapEvents":         "GetMapNameEvents",
	"ListMetrics":           "GetMetrics",
	"GetDebugInfo":          "GetDebuginfo",
	"ListLRPs":              "GetLRP",
	"GetCgroupMetadata":     "GetCgroupDumpMetadata",
	"ListFQDNs":             "GetFqdnCache",
	"DeleteFQDNs":           "DeleteFqdnCache",
	"ListEndpointFQDNs":     "GetFqdnCacheID",
	"GetFQDNNames":          "GetFqdnNames",
	"GetPrefilter":          "GetPrefilter",
	"PatchPrefilter":        "PatchPrefilter",
	"DeletePrefilter":       "DeletePrefilter",
	"ListBGPPeers":          "GetBGPPeers",
	"ListBGPRoutes":         "GetBGPRoutes",
	"ListBGPRoutePolicies":  "GetBGPRoutePolicies",
}

func switchedOff(operation string) string {
	return operation + " is switched off by --enable-cilium-api-server-access"
}
