package cli

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
)

// fakeAgent is an agent with a small cluster in memory. What a command changes can be read back.
// Operations it lacks panic, which the test sees as a broken connection.
type fakeAgent struct {
	server.StrictServerInterface

	mu        sync.Mutex
	failing   bool
	mesh      rest.ClusterMeshStatus
	config    rest.DaemonConfigurationSpec
	endpoints []rest.Endpoint
	policies  []rest.PolicyFile
	events    []rest.MonitorEvent
}

var agentTime = time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)

func newFakeAgent() *fakeAgent {
	front := rest.Endpoint{
		ID: 7,
		Status: rest.EndpointStatus{
			State:    rest.EndpointStateReady,
			Identity: rest.Identity{ID: 16384, Labels: rest.Labels{"k8s:app=front", "k8s:io.kubernetes.pod.namespace=shop"}},
			Labels: rest.LabelConfigurationStatus{
				SecurityRelevant: rest.Labels{"k8s:io.kubernetes.pod.namespace=shop", "k8s:app=front"},
				Derived:          rest.Labels{"k8s:pod-template-hash=1"},
				Realized:         rest.LabelConfigurationSpec{User: rest.Labels{"team=blue"}},
			},
			ExternalIdentifiers: rest.EndpointIdentifiers{
				ContainerID: "c0ffee", CNIAttachmentID: "c0ffee:eth0", K8SNamespace: "shop", K8SPodName: "front-1",
			},
			Networking: rest.EndpointNetworking{
				Addressing:    []rest.AddressPair{{IPv4: "10.0.1.7", IPv6: "fd00:1::7"}},
				InterfaceName: "lxc0123456789ab", InterfaceIndex: 21, ContainerInterfaceName: "eth0",
				MAC: "02:00:00:00:00:07", HostMAC: "02:00:00:00:01:07",
			},
			Policy: rest.EndpointPolicyStatus{Realized: rest.EndpointPolicy{
				PolicyEnabled: rest.EndpointPolicyEnabledBoth, PolicyRevision: 4,
			}},
			Health:     rest.EndpointHealth{OverallHealth: rest.EndpointHealthStatusOK, BPF: rest.EndpointHealthStatusOK, Policy: rest.EndpointHealthStatusOK, Connected: true},
			NamedPorts: []rest.NamedPort{{Name: "http", Port: 8080, Protocol: "TCP"}},
		},
	}
	db := rest.Endpoint{
		ID: 12,
		Status: rest.EndpointStatus{
			State: rest.EndpointStateWaitingForIdentity,
			Networking: rest.EndpointNetworking{
				Addressing:    []rest.AddressPair{{IPv4: "10.0.1.12"}},
				InterfaceName: "lxcba9876543210", InterfaceIndex: 23,
			},
			ExternalIdentifiers: rest.EndpointIdentifiers{ContainerID: "facade"},
			Health:              rest.EndpointHealth{OverallHealth: rest.EndpointHealthStatusFailure, BPF: rest.EndpointHealthStatusOK, Policy: rest.EndpointHealthStatusPending},
		},
	}
	packet := func(kind rest.MonitorEventType, second int) rest.MonitorEvent {
		return rest.MonitorEvent{
			Time: agentTime.Add(time.Duration(second) * time.Second), Type: kind, Endpoint: 7, Direction: "egress", Proto: "TCP",
			Source: "10.0.1.7", SourcePort: 40000, SourceIdentity: 16384,
			Destination: "10.0.2.9", DestinationPort: 5432, DestinationIdentity: 16385, Length: 74,
		}
	}
	drop := packet(rest.MonitorEventTypeDrop, 1)
	drop.Reason = "policy-denied"
	verdict := packet(rest.MonitorEventTypePolicyVerdict, 2)
	verdict.Direction, verdict.Verdict, verdict.Reason, verdict.Endpoint = "ingress", rest.PolicyVerdictAllowed, "rule", 12
	verdict.Source, verdict.Destination, verdict.SourceLabels = "10.0.2.9", "10.0.1.12", rest.Labels{"k8s:b=2", "k8s:a=1"}
	trace := packet(rest.MonitorEventTypeTrace, 4)
	trace.Point, trace.Destination, trace.Source = "to-overlay", "fd00:2::9", "fd00:1::7"
	return &fakeAgent{
		config: rest.DaemonConfigurationSpec{
			PolicyEnforcement: rest.PolicyEnforcementDefault,
			Options:           rest.ConfigurationMap{"DropNotification": "enabled", "TraceNotification": "disabled"},
		},
		endpoints: []rest.Endpoint{db, front},
		policies: []rest.PolicyFile{
			{Path: "/etc/hawser/policies/shop.yaml", State: rest.PolicyFileStateOk, InForce: true, Policies: []rest.PolicyFilePolicy{
				{Kind: "CiliumNetworkPolicy", Namespace: "shop", Name: "front", Rules: 1, Description: "who may call the shop"},
				{Kind: "CiliumClusterwideNetworkPolicy", Name: "dns", Rules: 2},
			}},
			{Path: "/etc/hawser/policies/broken.yaml", State: rest.PolicyFileStateFaulty, Error: "line 7: spec.ingress[0].toPorts[0].rules is not supported"},
		},
		events: []rest.MonitorEvent{drop, verdict, {Time: agentTime.Add(3 * time.Second), Type: rest.MonitorEventTypeLost, Lost: 42}, trace},
	}
}

// serve puts the agent on a unix socket and returns its path.
func (f *fakeAgent) serve(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hawser-cli") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "agent.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	srv := httptest.NewUnstartedServer(server.NewHandler(f, log))
	srv.Listener.Close()
	srv.Listener = l
	srv.Config.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelError)
	srv.Start()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return path
}

func (f *fakeAgent) find(id string) (*rest.Endpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.endpoints {
		ep := &f.endpoints[i]
		ids := ep.Status.ExternalIdentifiers
		if id == strconv.Itoa(ep.ID) || id == "cep-name:"+ids.K8SNamespace+"/"+ids.K8SPodName || id == "container-id:"+ids.ContainerID {
			return ep, nil
		}
	}
	if strings.HasPrefix(id, "bogus:") {
		return nil, server.Errorf(http.StatusBadRequest, "unknown prefix of an endpoint id: %q", id)
	}
	return nil, server.Errorf(http.StatusNotFound, "no endpoint %s", id)
}

func (f *fakeAgent) GetHealthz(_ context.Context, req server.GetHealthzRequestObject) (server.GetHealthzResponseObject, error) {
	overall := rest.Status{State: rest.StateOk, Msg: "all parts work"}
	datapath := rest.PartStatus{Name: "datapath", State: rest.StateOk, Msg: "programs attached", Since: agentTime}
	if f.failing {
		overall = rest.Status{State: rest.StateFailure, Msg: "datapath: cannot load programs"}
		datapath.State, datapath.Msg = rest.StateFailure, "cannot load programs"
	}
	if req.Params.Brief {
		return server.GetHealthz200JSONResponse{Cilium: overall}, nil
	}
	return server.GetHealthz200JSONResponse{
		Cilium:               overall,
		ClusterMesh:          f.mesh,
		Kvstore:              rest.Status{State: rest.StateOk, Msg: "etcd: 1 of 1 servers"},
		Kubernetes:           rest.K8SStatus{State: rest.StateDisabled},
		IPAM:                 rest.IPAMStatus{Status: "IPv4: 2 of 254 given out", Allocations: map[string]string{"10.0.1.12": "shop/db", "10.0.1.7": "shop/front-1"}},
		Hubble:               rest.Status{State: rest.StateDisabled},
		Routing:              rest.Routing{InterHostRoutingMode: "Tunnel", TunnelProtocol: "vxlan", IntraHostRoutingMode: "BPF"},
		KubeProxyReplacement: rest.KubeProxyReplacement{Mode: "True"},
		Masquerading:         rest.Masquerading{Enabled: true, Mode: "nftables", EnabledProtocols: rest.EnabledProtocols{IPv4: true}, SNATExclusionCIDRv4: "10.0.0.0/8"},
		IdentityRange:        rest.IdentityRange{MinIdentity: 256, MaxIdentity: 65535},
		Cluster: rest.ClusterStatus{
			Self: "n1", Nodes: []rest.NodeElement{{Name: "n1"}, {Name: "n2"}},
			CiliumHealth: rest.Status{State: rest.StateWarning, Msg: "1 of 2 nodes reachable; not: c/n2"},
		},
		DatapathMode: rest.DatapathModeVeth,
		AttachMode:   "tc",
		NodeMonitor:  rest.MonitorStatus{Lost: 42},
		Controllers: []rest.ControllerStatus{
			{Name: "sync-nodes", Status: rest.ControllerRunStatus{SuccessCount: 9}},
			{Name: "sync-ip", Status: rest.ControllerRunStatus{SuccessCount: 3, FailureCount: 2, ConsecutiveFailureCount: 1, LastFailureMsg: "no quorum"}},
		},
		Stale: map[string]time.Time{"conntrack-gc": agentTime},
		Parts: []rest.PartStatus{datapath, {Name: "policy", State: rest.StateWarning, Msg: "broken.yaml is faulty"}},
	}, nil
}

func (f *fakeAgent) GetClusterHealth(context.Context, server.GetClusterHealthRequestObject) (server.GetClusterHealthResponseObject, error) {
	answers := rest.HealthConnectivity{Latency: 1234567, LastProbed: agentTime, Since: agentTime.Add(-time.Hour)}
	silent := rest.HealthConnectivity{Status: "no answer", LastProbed: agentTime, Since: agentTime.Add(-time.Minute)}
	all := func(c rest.HealthConnectivity, ips ...string) (out rest.HealthAddresses) {
		for i, ip := range ips {
			p := rest.HealthPath{IP: ip, ICMP: c, HTTP: answers}
			if i == 0 {
				out.PrimaryAddress = p
			} else {
				out.SecondaryAddresses = append(out.SecondaryAddresses, p)
			}
		}
		return out
	}
	return server.GetClusterHealth200JSONResponse{Nodes: []rest.HealthNode{
		{Name: "c/n1", Host: all(answers, "192.0.2.1", "2001:db8::1"), HealthEndpoint: all(answers, "10.0.1.9")},
		{Name: "c/n2", Host: all(answers, "192.0.2.2"), HealthEndpoint: all(silent, "10.0.2.9")},
		{Name: "c/new", Host: all(rest.HealthConnectivity{}, "192.0.2.3")},
	}}, nil
}

func (f *fakeAgent) GetDebugInfo(context.Context, server.GetDebugInfoRequestObject) (server.GetDebugInfoResponseObject, error) {
	return server.GetDebugInfo200JSONResponse{CiliumVersion: "1.2.3", KernelVersion: "6.12.0", Subsystem: map[string]string{"addresses": "[]"}}, nil
}

func (f *fakeAgent) GetConfig(context.Context, server.GetConfigRequestObject) (server.GetConfigResponseObject, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return server.GetConfig200JSONResponse{
		Spec: f.config,
		Status: rest.DaemonConfigurationStatus{
			Realized:  f.config,
			Immutable: rest.ConfigurationMap{"tunnel-protocol": "vxlan"},
			Addressing: rest.NodeAddressing{
				IPv4: rest.NodeAddressingElement{Enabled: true, IP: "10.0.1.1", AllocRange: "10.0.1.0/24"},
			},
			IPAMMode: "cluster-pool", DatapathMode: rest.DatapathModeVeth, DeviceMTU: 1500, RouteMTU: 1450,
			KVStoreConfiguration: rest.KVStoreConfiguration{Type: "etcd", Options: rest.ConfigurationMap{"etcd.address": "http://127.0.0.1:2379"}},
		},
	}, nil
}

func (f *fakeAgent) PatchConfig(_ context.Context, req server.PatchConfigRequestObject) (server.PatchConfigResponseObject, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, value := range req.Body.Options {
		if _, ok := f.config.Options[name]; !ok {
			return server.PatchConfig400JSONResponse("unknown option " + name), nil
		}
		f.config.Options[name] = value
	}
	if p := req.Body.PolicyEnforcement; p != "" {
		f.config.PolicyEnforcement = p
	}
	return server.PatchConfig200Response{}, nil
}

func (f *fakeAgent) ListEndpoints(_ context.Context, req server.ListEndpointsRequestObject) (server.ListEndpointsResponseObject, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := server.ListEndpoints200JSONResponse{}
	for _, ep := range f.endpoints {
		has := func(l string) bool { return slices.Contains(ep.Status.Labels.SecurityRelevant, l) }
		if req.Body == nil || !slices.ContainsFunc(*req.Body, func(l string) bool { return !has(l) }) {
			out = append(out, ep)
		}
	}
	if len(out) == 0 {
		return server.ListEndpoints404JSONResponse("no endpoint has these labels"), nil
	}
	return out, nil
}

func (f *fakeAgent) GetEndpoint(_ context.Context, req server.GetEndpointRequestObject) (server.GetEndpointResponseObject, error) {
	ep, err := f.find(req.ID)
	if err != nil {
		return nil, err
	}
	return server.GetEndpoint200JSONResponse(*ep), nil
}

func (f *fakeAgent) DeleteEndpoint(_ context.Context, req server.DeleteEndpointRequestObject) (server.DeleteEndpointResponseObject, error) {
	ep, err := f.find(req.ID)
	if err != nil {
		return nil, err
	}
	if ep.ID == 12 {
		return server.DeleteEndpoint206JSONResponse(2), nil
	}
	return server.DeleteEndpoint200Response{}, nil
}

func (f *fakeAgent) DeleteEndpoints(_ context.Context, req server.DeleteEndpointsRequestObject) (server.DeleteEndpointsResponseObject, error) {
	if _, err := f.find("container-id:" + req.Body.ContainerID); err != nil {
		return nil, err
	}
	return server.DeleteEndpoints200Response{}, nil
}

func (f *fakeAgent) GetEndpointHealth(_ context.Context, req server.GetEndpointHealthRequestObject) (server.GetEndpointHealthResponseObject, error) {
	ep, err := f.find(req.ID)
	if err != nil {
		return nil, err
	}
	return server.GetEndpointHealth200JSONResponse(ep.Status.Health), nil
}

func (f *fakeAgent) GetEndpointLabels(_ context.Context, req server.GetEndpointLabelsRequestObject) (server.GetEndpointLabelsResponseObject, error) {
	ep, err := f.find(req.ID)
	if err != nil {
		return nil, err
	}
	return server.GetEndpointLabels200JSONResponse{Status: ep.Status.Labels}, nil
}

func (f *fakeAgent) PatchEndpointLabels(_ context.Context, req server.PatchEndpointLabelsRequestObject) (server.PatchEndpointLabelsResponseObject, error) {
	ep, err := f.find(req.ID)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ep.Status.Labels.Realized.User = req.Body.User
	return server.PatchEndpointLabels200Response{}, nil
}

func (f *fakeAgent) GetEndpointConfig(_ context.Context, req server.GetEndpointConfigRequestObject) (server.GetEndpointConfigResponseObject, error) {
	ep, err := f.find(req.ID)
	if err != nil {
		return nil, err
	}
	return server.GetEndpointConfig200JSONResponse{Realized: ep.Spec}, nil
}

func (f *fakeAgent) PatchEndpointConfig(_ context.Context, req server.PatchEndpointConfigRequestObject) (server.PatchEndpointConfigResponseObject, error) {
	ep, err := f.find(req.ID)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ep.Spec = *req.Body
	return server.PatchEndpointConfig200Response{}, nil
}

func (f *fakeAgent) GetEndpointLog(context.Context, server.GetEndpointLogRequestObject) (server.GetEndpointLogResponseObject, error) {
	return server.GetEndpointLog200JSONResponse{
		{Timestamp: "2026-03-01T12:30:01Z", Code: "ok", State: rest.EndpointStateReady, Message: "policy in force"},
		{Timestamp: "2026-03-01T12:30:00Z", Code: "failed", State: rest.EndpointStateWaitingForIdentity, Message: "store does not answer"},
	}, nil
}

func (f *fakeAgent) ListIdentities(_ context.Context, req server.ListIdentitiesRequestObject) (server.ListIdentitiesResponseObject, error) {
	if req.Body != nil {
		return server.ListIdentities404JSONResponse("no identity has exactly these labels"), nil
	}
	return server.ListIdentities200JSONResponse{
		{ID: 16384, Labels: rest.Labels{"k8s:io.kubernetes.pod.namespace=shop", "k8s:app=front"}},
		{ID: 1, Labels: rest.Labels{"reserved:host"}},
	}, nil
}

func (f *fakeAgent) GetIdentity(_ context.Context, req server.GetIdentityRequestObject) (server.GetIdentityResponseObject, error) {
	switch req.ID {
	case "1":
		return server.GetIdentity200JSONResponse{ID: 1, Labels: rest.Labels{"reserved:host"}}, nil
	case "16385":
		return server.GetIdentity520JSONResponse("the key-value store does not answer"), nil
	}
	return server.GetIdentity404JSONResponse("no identity " + req.ID), nil
}

func (f *fakeAgent) ListIdentityEndpoints(context.Context, server.ListIdentityEndpointsRequestObject) (server.ListIdentityEndpointsResponseObject, error) {
	return server.ListIdentityEndpoints200JSONResponse{
		{Identity: rest.Identity{ID: 16384, Labels: rest.Labels{"k8s:app=front", "k8s:io.kubernetes.pod.namespace=shop"}}, RefCount: 2},
	}, nil
}

func (f *fakeAgent) ListIPs(_ context.Context, req server.ListIPsRequestObject) (server.ListIPsResponseObject, error) {
	all := []rest.IPListEntry{
		{CIDR: "fd00:2::/64", Identity: 2, Metadata: rest.IPListEntryMetadata{Source: "generated"}},
		{CIDR: "10.0.1.12/32", Identity: 16384, Metadata: rest.IPListEntryMetadata{Source: "local"}},
		{CIDR: "10.0.1.7/32", Identity: 16384, HostIP: "192.0.2.2", EncryptKey: 3, Metadata: rest.IPListEntryMetadata{Source: "kvstore"}},
		{CIDR: "0.0.0.0/0", Identity: 2, Metadata: rest.IPListEntryMetadata{Source: "generated"}},
	}
	if req.Params.CIDR == "" {
		return server.ListIPs200JSONResponse(all), nil
	}
	within, err := netip.ParsePrefix(req.Params.CIDR)
	if err != nil {
		return server.ListIPs400JSONResponse(err.Error()), nil
	}
	out := server.ListIPs200JSONResponse{}
	for _, e := range all {
		if p := netip.MustParsePrefix(e.CIDR); within.Contains(p.Addr()) && within.Bits() <= p.Bits() {
			out = append(out, e)
		}
	}
	return out, nil
}

func (f *fakeAgent) GetClusterNodes(context.Context, server.GetClusterNodesRequestObject) (server.GetClusterNodesResponseObject, error) {
	node := func(name, v4, v4pods, v6, v6pods, source string) rest.NodeElement {
		return rest.NodeElement{Name: name, Source: source, PrimaryAddress: rest.NodeAddressing{
			IPv4: rest.NodeAddressingElement{Enabled: true, IP: v4, AllocRange: v4pods},
			IPv6: rest.NodeAddressingElement{Enabled: true, IP: v6, AllocRange: v6pods},
		}}
	}
	return server.GetClusterNodes200JSONResponse{Self: "n1", NodesAdded: []rest.NodeElement{
		node("n2", "192.0.2.2", "10.0.2.0/24", "2001:db8::2", "fd00:2::/64", "kvstore"),
		node("n1", "192.0.2.1", "10.0.1.0/24", "2001:db8::1", "fd00:1::/64", "local"),
	}}, nil
}

func (f *fakeAgent) ListNodeIDs(context.Context, server.ListNodeIDsRequestObject) (server.ListNodeIDsResponseObject, error) {
	return server.ListNodeIDs200JSONResponse{{ID: 2, IPs: []string{"192.0.2.2", "2001:db8::2"}}, {ID: 0, IPs: []string{"192.0.2.1"}}}, nil
}

func (f *fakeAgent) GetPolicy(context.Context, server.GetPolicyRequestObject) (server.GetPolicyResponseObject, error) {
	return server.GetPolicy200JSONResponse{Policy: `[{"endpointSelector":{"matchLabels":{"k8s:app":"front"}}}]`, Revision: 4}, nil
}

func (f *fakeAgent) ListPolicyFiles(context.Context, server.ListPolicyFilesRequestObject) (server.ListPolicyFilesResponseObject, error) {
	return server.ListPolicyFiles200JSONResponse(f.policies), nil
}

func (f *fakeAgent) ListSelectors(context.Context, server.ListSelectorsRequestObject) (server.ListSelectorsResponseObject, error) {
	return server.ListSelectors200JSONResponse{
		{Selector: `{"matchLabels":{"k8s:app":"db"}}`, Identities: []int{16390, 16385}, Users: 2, Labels: []rest.Label{{Source: "k8s", Key: "io.cilium.k8s.policy.name", Value: "front"}}},
		{Selector: `cidr:192.0.2.0/24`, Users: 1},
	}, nil
}

func (f *fakeAgent) ListSubjectSelectors(context.Context, server.ListSubjectSelectorsRequestObject) (server.ListSubjectSelectorsResponseObject, error) {
	return server.ListSubjectSelectors200JSONResponse{{Selector: `{"matchLabels":{"k8s:app":"front"}}`, Identities: []int{16384}, Users: 1}}, nil
}

func (f *fakeAgent) TracePolicy(_ context.Context, req server.TracePolicyRequestObject) (server.TracePolicyResponseObject, error) {
	if req.Params.To == "nowhere" {
		return server.TracePolicy404JSONResponse("no endpoint nowhere"), nil
	}
	port, err := strconv.Atoi(req.Params.DPort)
	if err != nil {
		return server.TracePolicy400JSONResponse("no port " + req.Params.DPort), nil
	}
	return server.TracePolicy200JSONResponse{
		From:  rest.PolicyTracePeer{Name: req.Params.From, Endpoint: 7, Identity: 16384, Labels: rest.Labels{"k8s:app=front"}},
		To:    rest.PolicyTracePeer{Name: req.Params.To, Identity: 16385},
		DPort: port, Proto: req.Params.Proto, Verdict: rest.PolicyVerdictDenied,
		Egress: rest.PolicyTraceDirection{Verdict: rest.PolicyVerdictAllowed, Enforced: false, Reason: "no policy selects the sender for egress"},
		Ingress: rest.PolicyTraceDirection{Verdict: rest.PolicyVerdictDenied, Enforced: true, Reason: "no rule allows it", Steps: []rest.PolicyTraceStep{
			{Rule: "shop/db ingress[0]", Effect: rest.PolicyTraceStepEffectNone, Reason: "port 5433 is not among 5432/TCP"},
			{Rule: "shop/db ingressDeny[0]", Effect: rest.PolicyTraceStepEffectDeny, Reason: "peer is selected"},
		}},
	}, nil
}

func (f *fakeAgent) GetMap(_ context.Context, req server.GetMapRequestObject) (server.GetMapResponseObject, error) {
	rows := map[string][]rest.BPFMapEntry{
		"endpoints": {
			{Key: "23", Endpoint: rest.MapEndpoint{ID: 12, InterfaceIndex: 23, Identity: 5, Locked: true}},
			{Key: "21", Endpoint: rest.MapEndpoint{ID: 7, InterfaceIndex: 21, InterfaceName: "lxc0123456789ab", Identity: 16384, RuleSet: 2, PolicyGeneration: 9, IPv4: "10.0.1.7", IPv6: "fd00:1::7", MAC: "02:00:00:00:00:07", HostMAC: "02:00:00:00:01:07"}},
		},
		"policy": {
			{Key: "d", Policy: rest.MapPolicy{RuleSet: 2, Direction: rest.MapPolicyDirectionEgress, Default: true}},
			{Key: "c", Policy: rest.MapPolicy{RuleSet: 2, Direction: rest.MapPolicyDirectionIngress, Default: true, Enforced: true}},
			{Key: "a", Policy: rest.MapPolicy{RuleSet: 2, Direction: rest.MapPolicyDirectionIngress, Identity: 16385, Proto: "TCP", Port: 8080, PortBits: 16, Verdict: rest.PolicyVerdictAllowed}},
			{Key: "b", Policy: rest.MapPolicy{RuleSet: 2, Direction: rest.MapPolicyDirectionIngress, Proto: "ANY", Verdict: rest.PolicyVerdictDenied}},
			{Key: "e", Policy: rest.MapPolicy{RuleSet: 3, Direction: rest.MapPolicyDirectionIngress, Proto: "UDP", Port: 1024, PortBits: 6, Verdict: rest.PolicyVerdictAllowed}},
		},
		"ipcache": {
			{Key: "10.0.2.0/24", IPCache: rest.MapIPCache{Prefix: "10.0.2.0/24", Identity: 6, TunnelEndpoint: "192.0.2.2"}},
			{Key: "0.0.0.0/0", IPCache: rest.MapIPCache{Prefix: "0.0.0.0/0", Identity: 2}},
		},
		"ct": {
			{Key: "f", Flow: rest.MapFlow{Proto: "TCP", Source: "10.0.1.7:40000", Destination: "10.0.2.9:5432", SourceIdentity: 16384, DestinationIdentity: 16385, SourceGeneration: 9, ExpiresSeconds: 8000, SeenReply: true, ForwardPackets: 10, ReversePackets: 18446744073709551615}},
		},
		"services": {
			{Key: "a", Service: rest.MapService{Frontend: "10.96.0.1:443", Proto: "TCP", Scope: "inside", Algorithm: "random", Backends: []string{"10.0.0.1:6443", "10.0.0.2:6443"}}},
			{Key: "b", Service: rest.MapService{Frontend: "10.96.0.2:53", Proto: "UDP", Scope: "inside", Algorithm: "random", AffinitySeconds: 10800}},
			{Key: "c", Service: rest.MapService{Frontend: "203.0.113.5:80", Proto: "TCP", Scope: "outside", Algorithm: "maglev", Elsewhere: true, Restricted: true,
				SourceRanges: []string{"10.0.0.0/8", "172.16.0.0/12"}}},
			{Key: "d", Service: rest.MapService{Frontend: "127.0.0.1:30080", Proto: "TCP", Scope: "node", Algorithm: "random", Restricted: true, Backends: []string{"10.0.0.1:80"}}},
		},
		"shares": {
			{Key: "12", Share: rest.MapShare{Endpoint: 12, Entries: 33000, Share: 32768, Excess: 232}},
			{Key: "0", Share: rest.MapShare{Entries: 5, Share: 65536}},
			{Key: "7", Share: rest.MapShare{Endpoint: 7, Entries: 40}},
		},
		"metrics": {
			{Key: "m", Metric: rest.MapMetric{Reason: "policy-denied", Direction: "egress", Packets: 3, Bytes: 222}},
			{Key: "n", Metric: rest.MapMetric{Reason: "forwarded", Direction: "ingress", Packets: 5, Bytes: 370}},
		},
	}
	content, ok := rows[req.Name]
	if !ok {
		return server.GetMap404JSONResponse("no map " + req.Name), nil
	}
	return server.GetMap200JSONResponse{Path: "/sys/fs/bpf/hawser/" + req.Name, Cache: content}, nil
}

func (f *fakeAgent) Monitor(ctx context.Context, req server.MonitorRequestObject) (server.MonitorResponseObject, error) {
	return server.MonitorStream(func(emit func(...rest.MonitorEvent) error) error {
		for _, ev := range f.events {
			if want := req.Params.Type; want == "" || ev.Type == rest.MonitorEventTypeLost || slices.Contains(strings.Split(want, ","), string(ev.Type)) {
				if err := emit(ev); err != nil {
					return err
				}
			}
		}
		return ctx.Err() // the stream ends here, as if the agent stopped
	}), nil
}
