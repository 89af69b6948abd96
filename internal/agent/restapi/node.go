package restapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// GetConfig is GET /config. The CNI plugin calls it first, for every pod.
func (a *API) GetConfig(context.Context, server.GetConfigRequestObject) (server.GetConfigResponseObject, error) {
	devices := a.Devices()
	spec := rest.DaemonConfigurationSpec{PolicyEnforcement: rest.PolicyEnforcement(a.policyMode()), Options: a.auditOptions()}
	out := rest.DaemonConfiguration{
		Spec: spec,
		Status: rest.DaemonConfigurationStatus{
			Realized: spec, Immutable: rest.ConfigurationMap(a.Flags), Addressing: a.hostAddressing(),
			DeviceMTU: devices.DeviceMTU, RouteMTU: devices.RouteMTU,
			DatapathMode: a.datapathMode(), ConfiguredDatapathMode: a.Options.DatapathMode, IPAMMode: a.ipamMode(),
			Masquerade:           a.Options.MasqueradeIPv4 || a.Options.MasqueradeIPv6,
			MasqueradeProtocols:  rest.EnabledProtocols{IPv4: a.Options.MasqueradeIPv4 && a.Options.EnableIPv4, IPv6: a.Options.MasqueradeIPv6 && a.Options.EnableIPv6},
			KVStoreConfiguration: rest.KVStoreConfiguration{Type: a.Options.KVStore, Options: rest.ConfigurationMap(redact(a.Options.KVStoreOpts))},
			NodeMonitor:          rest.MonitorStatus{Lost: a.Events.AllLost()},
		},
	}
	a.PodSettings(&out.Status)
	return server.GetConfig200JSONResponse(out), nil
}

// datapathMode is how pods are connected, or that there are none.
func (a *API) datapathMode() rest.DatapathMode {
	if a.Options.DatapathMode == string(rest.DatapathModeLbOnly) {
		return rest.DatapathModeLbOnly
	}
	return rest.DatapathModeVeth
}

// ipamMode is the word for where the node's ranges come from. Without Kubernetes it is the one for
// ranges that are given.
func (a *API) ipamMode() string {
	if a.Kubernetes != nil || (a.Options.IPAM == addressing.Delegated) {
		return a.Options.IPAM
	}
	return addressing.Kubernetes
}

// redact hides what must not leave the agent.
func redact(options map[string]string) map[string]string {
	out := make(map[string]string, len(options))
	for k, v := range options {
		if strings.Contains(k, "password") || strings.Contains(k, "token") || strings.Contains(k, "secret") {
			v = "(hidden)"
		}
		out[k] = v
	}
	return out
}

// PatchConfig is PATCH /config. Policy enforcement and audit mode are what changes at run time.
func (a *API) PatchConfig(_ context.Context, req server.PatchConfigRequestObject) (server.PatchConfigResponseObject, error) {
	if req.Body == nil {
		return nil, server.Errorf(http.StatusBadRequest, "the request has no body: want a DaemonConfigurationSpec")
	}
	audit, setAudit, err := parseAudit(req.Body.Options, "set it in the configuration and start the agent again. What can change besides policy-enforcement is")
	if err != nil {
		return nil, err
	}
	if setAudit && audit == endpoint.AuditInherited {
		return nil, server.Errorf(http.StatusBadRequest, "%s: the node has nothing to inherit it from: want Enabled or Disabled", optionAudit)
	}
	var failed error
	if req.Body.PolicyEnforcement != "" {
		mode, err := policy.ParseMode(string(req.Body.PolicyEnforcement))
		if err != nil {
			return nil, server.Errorf(http.StatusBadRequest, "policy-enforcement: %w", err)
		}
		failed = a.Policy.Change(func(e *policy.Engine) error { e.SetMode(mode); return nil })
	}
	if setAudit {
		failed = errors.Join(failed, a.Policy.SetAudit(audit == endpoint.AuditEnabled))
	}
	if errors.Is(failed, endpoint.ErrRowNotWritten) {
		return nil, failed
	}
	if failed != nil { // in force, but some endpoints drop everything: the status shows it, too
		a.Log.Warn("policy is not fully in force", "error", failed)
	}
	return server.PatchConfig200Response{}, nil
}

func (a *API) policyMode() string {
	var mode policy.Mode
	a.Policy.View(func(e *policy.Engine) { mode = e.Mode() })
	return mode.String()
}

// GetHealthz is GET /healthz.
func (a *API) GetHealthz(_ context.Context, req server.GetHealthzRequestObject) (server.GetHealthzResponseObject, error) {
	if req.Params.Brief {
		st := a.Status()
		return server.GetHealthz200JSONResponse(rest.StatusResponse{Cilium: st.Cilium, Stale: st.Stale}), nil
	}
	return server.GetHealthz200JSONResponse(a.FullStatus()), nil
}

// FullStatus is status with the nodes.
func (a *API) FullStatus() rest.StatusResponse {
	st := a.Status()
	st.Cluster = rest.ClusterStatus{Self: a.localName(), Nodes: a.nodeElements(), CiliumHealth: a.healthSummary()}
	return st
}

// Status puts together the state of every part. The whole is a failure if a part is, or if the CNI
// configuration is missing; a store or an API server that is away, which merely delays updates from
// other nodes, is a warning.
func (a *API) Status() rest.StatusResponse {
	st := rest.StatusResponse{
		Kubernetes:   a.kubernetesStatus(),
		DatapathMode: a.datapathMode(), ConfiguredDatapathMode: a.Options.DatapathMode, AttachMode: "tc",
		IdentityRange: rest.IdentityRange{MinIdentity: int(a.FirstID), MaxIdentity: int(a.LastID)},
		Masquerading: rest.Masquerading{
			Enabled: a.Options.MasqueradeIPv4 || a.Options.MasqueradeIPv6, Mode: "nftables",
			EnabledProtocols: rest.EnabledProtocols{IPv4: a.Options.MasqueradeIPv4 && a.Options.EnableIPv4, IPv6: a.Options.MasqueradeIPv6 && a.Options.EnableIPv6},
		},
		NodeMonitor: rest.MonitorStatus{Lost: a.Events.AllLost()}, IPAM: a.ipamStatus(),
	}
	devices := a.Devices()
	st.IPv4BigTCP, st.IPv6BigTCP = bigTCP(devices.SegmentSize4, devices.SegmentSize4), bigTCP(devices.SegmentSize6, 0)
	st.Encryption.Mode, st.HostFirewall.Mode = modeDisabled, modeDisabled
	st.AuthCertificateProvider.State = rest.StateDisabled
	st.KubeProxyReplacement.Mode = "False"
	if a.Options.KubeProxyReplacement {
		st.KubeProxyReplacement.Mode = "True"
	}
	st.Routing = rest.Routing{InterHostRoutingMode: "Native"}
	if a.Options.RoutingMode == "tunnel" {
		st.Routing = rest.Routing{InterHostRoutingMode: "Tunnel", TunnelProtocol: a.Options.TunnelProtocol}
	}
	st.Hubble = a.Hubble.Status()
	st.Kvstore = a.kvstoreStatus()
	st.CNIFile = a.cniStatus()
	st.Parts = a.Components.List()
	st.ClusterMesh = a.Mesh.Status()
	for _, part := range []func() (rest.PartStatus, bool){a.Sync, a.Mesh.Component, a.auditPart} {
		if p, ok := part(); ok {
			st.Parts = append(st.Parts, p)
		}
	}
	ready := 0
	rows := a.Registry.List()
	for _, row := range rows {
		if row.State == endpoint.StateReady {
			ready++
		}
	}
	st.Parts = append(st.Parts, a.policyPart(), rest.PartStatus{Name: "endpoints", State: rest.StateOk, Msg: fmt.Sprintf("%d of %d ready", ready, len(rows))})
	st.Cilium = rest.Status{State: rest.StateOk, Msg: a.Version}
	for _, p := range judged(&st) {
		if p.State == rest.StateFailure || (p.State == rest.StateWarning && st.Cilium.State == rest.StateOk) {
			st.Cilium = rest.Status{State: p.State, Msg: p.Name + ": " + p.Msg}
		}
	}
	return st
}

// judged returns what the whole is judged by.
func judged(st *rest.StatusResponse) []rest.PartStatus {
	out := []rest.PartStatus{
		{Name: "kvstore", State: st.Kvstore.State, Msg: st.Kvstore.Msg},
		{Name: "Kubernetes", State: st.Kubernetes.State, Msg: st.Kubernetes.Msg},
	}
	for i := range out {
		if out[i].State == rest.StateFailure {
			out[i].State = rest.StateWarning // it merely delays updates from other nodes
		}
	}
	out = append(out, rest.PartStatus{Name: "CNI configuration", State: st.CNIFile.State, Msg: st.CNIFile.Msg})
	return append(out, st.Parts...)
}

// Failures counts what makes the whole a failure.
func Failures(st *rest.StatusResponse) (n int) {
	for _, p := range judged(st) {
		if p.State == rest.StateFailure {
			n++
		}
	}
	return n
}

// policyPart reports which policy is in force, and which files are not as they should be.
func (a *API) policyPart() rest.PartStatus {
	states := a.PolicyFileStates()
	p := rest.PartStatus{Name: "policy-files", State: rest.StateOk, Msg: fmt.Sprintf("%d in force, revision %d", states["ok"], a.Policy.Revision())}
	if n := states["faulty"]; n > 0 {
		p.State, p.Msg = rest.StateWarning, fmt.Sprintf("%d faulty (see hawser policy list), %d in force, revision %d", n, states["ok"], a.Policy.Revision())
	}
	return p
}

func (a *API) kvstoreStatus() rest.Status {
	if a.Store == nil {
		return rest.Status{State: rest.StateDisabled, Msg: "this node is on its own"}
	}
	s := a.Store.Status()
	switch s.State {
	case kvstore.StateOK:
		return rest.Status{State: rest.StateOk, Msg: s.Message}
	case kvstore.StateDegraded, kvstore.StateConnecting:
		return rest.Status{State: rest.StateWarning, Msg: s.Message}
	}
	return rest.Status{State: rest.StateFailure, Msg: s.Message}
}

func (a *API) ipamStatus() rest.IPAMStatus {
	out := rest.IPAMStatus{Allocations: map[string]string{}}
	for _, g := range a.Pool.Dump() {
		out.Allocations[g.IP.String()] = g.Owner
		if g.IP.Is4() {
			out.IPv4 = append(out.IPv4, g.IP.String())
		} else {
			out.IPv6 = append(out.IPv6, g.IP.String())
		}
	}
	var text []string
	for _, u := range a.Pool.Usage() {
		family := "IPv4"
		if u.Family == ipam.IPv6 {
			family = "IPv6"
		}
		from := "single addresses"
		if u.CIDR.IsValid() {
			from = u.CIDR.String()
		}
		line := fmt.Sprintf("%s: %d/%d allocated from %s", family, u.Used, u.Capacity, from)
		if a.Kubernetes != nil && a.Kubernetes.Named() {
			line += " of pool " + u.Pool
		}
		if u.Drained {
			line += " (no new ones)"
		}
		text = append(text, line)
	}
	out.Status = strings.Join(text, ", ")
	if a.datapathMode() == rest.DatapathModeLbOnly {
		out.Status = "none: the node has no pods"
	}
	return out
}

// ListIdentities is GET /identity: all known, or those with the given labels.
func (a *API) ListIdentities(_ context.Context, req server.ListIdentitiesRequestObject) (server.ListIdentitiesResponseObject, error) {
	var want labels.Set
	if req.Body != nil {
		var err error
		if want, err = labels.ParseSet(*req.Body); err != nil {
			return nil, server.Errorf(http.StatusBadRequest, "labels: %w", err)
		}
	}
	out := []rest.Identity{}
	for _, k := range a.Identities.List() {
		if hasAll(k.Labels, want) {
			out = append(out, identityModel(k.ID, k.Labels))
		}
	}
	if len(want) > 0 && len(out) == 0 {
		return nil, server.Errorf(http.StatusNotFound, "no identity has the labels %s", want)
	}
	return server.ListIdentities200JSONResponse(out), nil
}

// GetIdentity is GET /identity/{id}.
func (a *API) GetIdentity(_ context.Context, req server.GetIdentityRequestObject) (server.GetIdentityResponseObject, error) {
	id, err := identity.Parse(req.ID)
	if err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "%w", err)
	}
	set, ok := a.Identities.Labels(id)
	if !ok {
		return nil, server.Errorf(http.StatusNotFound, "identity %d is not known on this node", uint32(id))
	}
	return server.GetIdentity200JSONResponse(identityModel(id, set)), nil
}

// ListIdentityEndpoints is GET /identity/endpoints: identities of local endpoints with how many
// have each.
func (a *API) ListIdentityEndpoints(context.Context, server.ListIdentityEndpointsRequestObject) (server.ListIdentityEndpointsResponseObject, error) {
	count := map[identity.ID]int{}
	for _, row := range a.Registry.List() {
		count[row.Identity]++
	}
	out := []rest.IdentityEndpoints{}
	for _, k := range a.Identities.List() {
		if n := count[k.ID]; n > 0 {
			out = append(out, rest.IdentityEndpoints{Identity: identityModel(k.ID, k.Labels), RefCount: n})
		}
	}
	return server.ListIdentityEndpoints200JSONResponse(out), nil
}

// ListIPs is GET /ip: the identity of each address.
func (a *API) ListIPs(_ context.Context, req server.ListIPsRequestObject) (server.ListIPsResponseObject, error) {
	entries, err := a.ipList(req.Params.CIDR)
	if err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "%w", err)
	}
	if req.Params.CIDR != "" && len(entries) == 0 {
		return nil, server.Errorf(http.StatusNotFound, "nothing is known of %s", req.Params.CIDR)
	}
	return server.ListIPs200JSONResponse(entries), nil
}

// GetClusterNodes is GET /cluster/nodes. A client that gives its number gets what changed since it
// asked last.
func (a *API) GetClusterNodes(_ context.Context, req server.GetClusterNodesRequestObject) (server.GetClusterNodesResponseObject, error) {
	return server.GetClusterNodes200JSONResponse(a.nodeClients.changes(req.Params.ClientID, a.localName(), a.nodeElements())), nil
}

// ListNodeIDs is GET /node/ids.
func (a *API) ListNodeIDs(context.Context, server.ListNodeIDsRequestObject) (server.ListNodeIDsResponseObject, error) {
	return server.ListNodeIDs200JSONResponse(a.nodeIDs()), nil
}

// localName is cluster/node, by which nodes are listed.
func (a *API) localName() string { return a.Options.ClusterName + "/" + a.Options.NodeName }

// bigTCP is one family's part of the status.
func bigTCP(gso, gro int) rest.BigTCPStatus {
	return rest.BigTCPStatus{Enabled: gso > 0, MaxGSO: gso, MaxGRO: gro}
}
