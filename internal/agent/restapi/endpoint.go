package restapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/validate"
)

// endpointError gives an error of the endpoint package its code. What is the caller's fault is a
// 400, as clients of this API expect even for duplicates.
func endpointError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, endpoint.ErrNotFound):
		return server.Errorf(http.StatusNotFound, "%w", err)
	case errors.Is(err, endpoint.ErrInvalid), errors.Is(err, endpoint.ErrExists):
		return server.Errorf(http.StatusBadRequest, "%w", err)
	case errors.Is(err, endpoint.ErrSuperseded):
		return server.Errorf(http.StatusConflict, "%w", err)
	case errors.Is(err, endpoint.ErrNotObserved):
		return server.Errorf(http.StatusServiceUnavailable, "%w; try again in a moment", err)
	}
	return err
}

// find resolves an endpoint id of the API.
func (a *API) find(id string) (endpoint.Endpoint, error) {
	ref, err := a.reference(id)
	if err != nil {
		return endpoint.Endpoint{}, endpointError(err)
	}
	row, err := a.Registry.Find(ref)
	return row, endpointError(err)
}

// reference reads an endpoint id of the API.
func (a *API) reference(id string) (endpoint.Ref, error) {
	ref, err := endpoint.ParseRef(id)
	if err != nil {
		return ref, err
	}
	if ref.Kind == endpoint.RefGlobalID {
		// An endpoint's global name is its cluster, its node and its number there.
		if own, ok := strings.CutPrefix(ref.Text, a.Options.ClusterName+":"+a.Options.NodeName+":"); ok {
			if local, err := endpoint.ParseRef(own); err == nil && local.Kind == endpoint.RefLocalID {
				ref = local
			}
		}
	}
	return ref, nil
}

// CreateEndpoint is PUT /endpoint/{id}.
func (a *API) CreateEndpoint(ctx context.Context, req server.CreateEndpointRequestObject) (server.CreateEndpointResponseObject, error) {
	ref, err := endpoint.ParseRef(req.ID)
	if err != nil {
		return nil, endpointError(err)
	}
	if req.Body == nil {
		return nil, server.Errorf(http.StatusBadRequest, "the request has no body: want an EndpointChangeRequest")
	}
	create, err := a.createRequest(req.Body)
	if err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "%w", err)
	}
	if ref.Kind == endpoint.RefLocalID && create.ID == 0 {
		create.ID = ref.Local
	}
	if err := a.AwaitPrograms(ctx); err != nil {
		return nil, err
	}
	if a.Kubernetes != nil && create.PodName != "" {
		if err := a.Kubernetes.Complete(ctx, &create, req.Body.Labels); err != nil {
			return nil, err
		}
	}
	// What waits is of an earlier endpoint of the attachment, which was deleted or is in the way.
	if err := a.DropDeletions(queuedDeletion(create.Attachment), deletequeue.Entry{ContainerID: create.ContainerID}); err != nil {
		return nil, err
	}
	row, err := a.Lifecycle.Create(ctx, create)
	if errors.Is(err, endpoint.ErrNotObserved) && a.AwaitRules(ctx) == nil {
		row, err = a.Lifecycle.Create(ctx, create)
	}
	if err != nil {
		return nil, endpointError(err)
	}
	if a.Kubernetes != nil {
		a.Kubernetes.Relabel(k8s.Key{Namespace: row.Namespace, Name: row.PodName}) // it may have changed since it was read
	}
	return server.CreateEndpoint201JSONResponse(a.endpointModel(row)), nil
}

// createRequest checks and translates the body of a creation.
func (a *API) createRequest(m *rest.EndpointChangeRequest) (endpoint.CreateRequest, error) {
	var errs validate.Errors
	mac := func(name, s string) net.HardwareAddr {
		hw, err := net.ParseMAC(s)
		errs.If(err != nil || len(hw) != 6, "%s: %q is not an Ethernet address", name, s)
		return hw
	}
	addr := func(name, s string, v4 bool) netip.Addr {
		if s == "" {
			return netip.Addr{}
		}
		text, _, _ := strings.Cut(s, "/")
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" || ip.Is4In6() || ip.Is4() != v4 {
			errs.Add("addressing.%s: %q is not an address of that family", name, s)
			return netip.Addr{}
		}
		return ip
	}
	req := endpoint.CreateRequest{
		Attachment: endpoint.Attachment{
			ContainerID: m.ContainerID, ContainerName: m.ContainerName, ContainerIfName: m.ContainerInterfaceName,
			NetnsPath: m.ContainerNetnsPath, NetnsCookie: m.NetnsCookie,
			IfName: m.InterfaceName, IfIndex: m.InterfaceIndex,
			MAC: mac("mac", m.MAC), HostMAC: mac("host-mac", m.HostMAC),
			IPv4: addr("ipv4", m.Addressing.IPv4, true), IPv6: addr("ipv6", m.Addressing.IPv6, false),
			Namespace: m.K8SNamespace, PodName: m.K8SPodName, PodUID: m.K8SUid,
			PlainIPv4: m.Properties[propertyPlain4] == true, PlainIPv6: m.Properties[propertyPlain6] == true,
		},
		IPv4Expiration: m.Addressing.IPv4ExpirationUUID, IPv6Expiration: m.Addressing.IPv6ExpirationUUID,
	}
	errs.If(m.ID < 0 || m.ID > 65535, "id: %d is outside 0 to 65535", m.ID)
	req.ID = uint16(m.ID)
	errs.If(m.State != "" && m.State != rest.EndpointStateWaitingForIdentity, "state: a new endpoint is %s, not %s", rest.EndpointStateWaitingForIdentity, m.State)
	errs.If((m.K8SPodName == "") != (m.K8SNamespace == ""), "k8s-pod-name and k8s-namespace go together")
	switch external := m.DatapathConfiguration.ExternalIPAM; {
	case external && !(a.Options.IPAM == addressing.Delegated):
		errs.Add("datapath-configuration.external-ipam: the agent gives the addresses, as its --ipam is not %s; ask it for them", addressing.Delegated)
	case !external && (a.Options.IPAM == addressing.Delegated):
		errs.Add("datapath-configuration.external-ipam is not set: --ipam is %s, so another plugin has to give the addresses; name it in the CNI configuration's ipam.type", addressing.Delegated)
	}
	errs = append(errs, withoutEffect(m, addressing.OfCloud(a.Options.IPAM)))
	lbls, err := a.workloadLabels(m)
	if err != nil {
		errs = append(errs, err)
	}
	req.Labels = lbls
	return req, errs.Err()
}

// Properties of an endpoint that the plugin hands on from the answer to its request for addresses.
const (
	propertyPlain4 = "property-skip-masquerade-v4"
	propertyPlain6 = "property-skip-masquerade-v6"
)

// withoutEffect refuses what would change how an endpoint is connected or what is enforced for it,
// and does not here: the client must not believe that it does. Where addresses belong to network
// interfaces of a cloud the plugin names the one by which the pod's packets leave, which the agent
// derives from the address.
func withoutEffect(m *rest.EndpointChangeRequest, ofCloud bool) error {
	var errs []error
	refuse := func(asked bool, field, why string) {
		if asked {
			errs = append(errs, fmt.Errorf("%s is not supported: %s; leave it out", field, why))
		}
	}
	dp := m.DatapathConfiguration
	refuse(m.SyncBuildEndpoint != nil && !*m.SyncBuildEndpoint, "sync-build-endpoint=false", "the answer comes when the endpoint's policy is enforced")
	refuse(m.PolicyEnabled, "policy-enabled", "policies and --enable-policy determine what is enforced")
	refuse(m.IsSecondaryInterface, "is-secondary-interface", "a pod has one interface")
	refuse(m.ParentInterfaceIndex != 0 && !ofCloud, "parent-interface-index", "pods are routed by the node's own device")
	refuse(m.DatapathMapID != 0, "datapath-map-id", "pods have veth interfaces")
	refuse(dp.RequireArpPassthrough, "datapath-configuration.require-arp-passthrough", "the programs answer for the router")
	refuse(dp.RequireRouting != nil && !*dp.RequireRouting, "datapath-configuration.require-routing=false", "this node always routes for its pods")
	refuse(dp.DisableSIPVerification, "datapath-configuration.disable-sip-verification", "a pod's source addresses are always checked")
	for _, name := range slices.Sorted(maps.Keys(m.Properties)) {
		value := m.Properties[name]
		_, flag := value.(bool)
		switch {
		case value == nil || value == false:
		case name != propertyPlain4 && name != propertyPlain6:
			refuse(true, "properties."+name, "endpoints have no such property")
		default:
			refuse(!flag, fmt.Sprintf("properties.%s=%v", name, value), "it is true or false")
		}
	}
	return errors.Join(errs...)
}

// workloadLabels makes the endpoint's labels from what the plugin sent: the runtime's own labels
// (CNI convention args.cni.labels) are a pod's labels, and namespace and cluster are added so that
// no label of the workload can stand in for them.
func (a *API) workloadLabels(m *rest.EndpointChangeRequest) (labels.Set, error) {
	given, err := labels.ParseSet(m.Labels)
	if err != nil {
		return nil, fmt.Errorf("labels: %w", err)
	}
	pod := map[string]string{}
	for _, l := range given {
		if labels.GiverOf(l.Source) != labels.GivenByAnyone {
			return nil, fmt.Errorf("labels: %s: labels of this source cannot be asked for", l)
		}
		if m.K8SPodName == "" && labels.Owned(l.Key) {
			return nil, fmt.Errorf("labels: %s: a workload that is no pod has no namespace and no cluster of its own choice", l)
		}
		pod[l.Key] = l.Value
	}
	if m.K8SPodName == "" {
		if len(pod) == 0 {
			return nil, nil // reserved:init
		}
		return labels.FromMap(labels.SourceK8s, pod).With(labels.New(labels.SourceK8s, labels.KeyCluster, a.Options.ClusterName)), nil
	}
	return labels.PodLabels(labels.Pod{Namespace: m.K8SNamespace, Labels: pod, Cluster: a.Options.ClusterName})
}

// PatchEndpoint is PATCH /endpoint/{id}: the labels of an endpoint can change, its attachment
// cannot.
func (a *API) PatchEndpoint(ctx context.Context, req server.PatchEndpointRequestObject) (server.PatchEndpointResponseObject, error) {
	row, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	if req.Body == nil {
		return nil, server.Errorf(http.StatusBadRequest, "the request has no body: want an EndpointChangeRequest")
	}
	m := req.Body
	switch m.State {
	case "", rest.EndpointStateWaitingForIdentity, rest.EndpointStateReady:
	default:
		return nil, server.Errorf(http.StatusBadRequest, "state: %s cannot be asked for; only %s and %s", m.State, rest.EndpointStateWaitingForIdentity, rest.EndpointStateReady)
	}
	if err := withoutEffect(m, addressing.OfCloud(a.Options.IPAM)); err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "%w", err)
	}
	if (m.InterfaceIndex != 0 && m.InterfaceIndex != row.IfIndex) || (m.ContainerID != "" && m.ContainerID != row.ContainerID) ||
		m.Properties[propertyPlain4] == true && !row.PlainIPv4 || m.Properties[propertyPlain6] == true && !row.PlainIPv6 {
		return nil, server.Errorf(http.StatusBadRequest, "endpoint %d: the attachment of an endpoint cannot change; delete it and create another", row.ID)
	}
	if len(m.Labels) > 0 {
		if row, err = a.setUserLabels(ctx, row, m.Labels); err != nil {
			return nil, err
		}
	}
	return server.PatchEndpoint200JSONResponse(a.endpointModel(row)), nil
}

// setUserLabels gives an endpoint these labels of a user, in place of those before.
func (a *API) setUserLabels(ctx context.Context, row endpoint.Endpoint, texts []string) (endpoint.Endpoint, error) {
	user, err := labels.ParseSet(texts)
	if err == nil {
		err = a.checkUserLabels(row, user)
	}
	if err != nil {
		return row, server.Errorf(http.StatusBadRequest, "labels: %w", err)
	}
	if row, err = a.Lifecycle.SetLabels(ctx, row.ID, user, row.Disabled); err != nil {
		return row, endpointError(err)
	}
	return row, nil
}

// checkUserLabels reports which of a user's labels the endpoint cannot be given. Where the operator
// makes identities it makes them from the pod in Kubernetes: it would never make one with a label
// that only this agent knows, and would publish the pod's own to the other nodes. Labels of before
// that can be deleted.
func (a *API) checkUserLabels(row endpoint.Endpoint, user labels.Set) error {
	if row.Health() {
		return errors.New("the node's health endpoint has no labels but its own")
	}
	if err := labels.CheckGiven(user); err != nil {
		return err
	}
	mode := a.Options.Management
	if !a.operatorNames(row) {
		return nil
	}
	for _, l := range user {
		if !slices.Contains(row.User, l) {
			return fmt.Errorf("%s: the operator makes identities here (--%s %s), and knows no labels but those of pods: label the pod itself", l, identity.ManagementFlag, mode)
		}
	}
	return nil
}

// operatorNames reports whether it is the operator that makes an endpoint's identity, of what it
// knows of it.
func (a *API) operatorNames(row endpoint.Endpoint) bool {
	mode := a.Options.Management
	return mode.Operator() && (!mode.Agent() || row.Pod() != "")
}

// NoteUserLabels logs restored endpoints that have labels of users where checkUserLabels would
// refuse them.
func (a *API) NoteUserLabels() {
	for _, row := range a.Registry.List() {
		if len(row.User)+len(row.Disabled) > 0 && a.operatorNames(row) {
			a.Log.Error("users have set labels of an endpoint, and the operator, which makes identities here, does not know them: the other nodes do not know it by them; "+
				"delete them with hawser endpoint labels --delete", "endpoint", row.ID, "pod", row.Pod(), "labels", row.User.String(), "disabled", row.Disabled.String())
		}
	}
}

// GetEndpoint is GET /endpoint/{id}.
func (a *API) GetEndpoint(_ context.Context, req server.GetEndpointRequestObject) (server.GetEndpointResponseObject, error) {
	row, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	return server.GetEndpoint200JSONResponse(a.endpointModel(row)), nil
}

// ListEndpoints is GET /endpoint: all endpoints that have the given labels.
func (a *API) ListEndpoints(_ context.Context, req server.ListEndpointsRequestObject) (server.ListEndpointsResponseObject, error) {
	var want labels.Set
	if req.Body != nil {
		var err error
		if want, err = labels.ParseSet(*req.Body); err != nil {
			return nil, server.Errorf(http.StatusBadRequest, "labels: %w", err)
		}
	}
	out := []rest.Endpoint{}
	for _, row := range a.Registry.List() {
		if hasAll(slices.Concat(row.IdentityLabels, row.InfoLabels), want) {
			out = append(out, a.endpointModel(row))
		}
	}
	if len(want) > 0 && len(out) == 0 {
		return nil, server.Errorf(http.StatusNotFound, "no endpoint has the labels %s", want)
	}
	return server.ListEndpoints200JSONResponse(out), nil
}

func hasAll(have []labels.Label, want labels.Set) bool {
	for _, w := range want {
		if !slices.ContainsFunc(have, func(l labels.Label) bool {
			return l.Key == w.Key && l.Value == w.Value && (l.Source == w.Source || w.Source == labels.SourceAny || w.Source == labels.SourceUnspec)
		}) {
			return false
		}
	}
	return true
}

// queuedDeletion is how the plugin queues the deletion of an attachment.
func queuedDeletion(at endpoint.Attachment) deletequeue.Entry {
	return deletequeue.Entry{EndpointID: endpoint.Ref{Kind: endpoint.RefAttachment, Text: at.AttachmentID()}.String()}
}

// dropDone drops the deletions of a client that did not wait for the answer, and has queued what
// has been done now: else they stay until the next start, and the queue has an end.
func (a *API) dropDone(entries ...deletequeue.Entry) {
	if err := a.DropDeletions(entries...); err != nil {
		a.Log.Warn("a deletion that was done stays queued", "error", err)
	}
}

// DeleteEndpoint is DELETE /endpoint/{id}.
func (a *API) DeleteEndpoint(_ context.Context, req server.DeleteEndpointRequestObject) (server.DeleteEndpointResponseObject, error) {
	row, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	failures, err := a.Lifecycle.Delete(row.ID)
	a.dropDone(queuedDeletion(row.Attachment))
	if err != nil {
		return nil, endpointError(err)
	}
	if failures > 0 {
		return server.DeleteEndpoint206JSONResponse(failures), nil
	}
	return server.DeleteEndpoint200Response{}, nil
}

// DeleteEndpoints is DELETE /endpoint: all endpoints of a container.
func (a *API) DeleteEndpoints(_ context.Context, req server.DeleteEndpointsRequestObject) (server.DeleteEndpointsResponseObject, error) {
	if req.Body == nil || req.Body.ContainerID == "" {
		return nil, server.Errorf(http.StatusBadRequest, "container-id is needed")
	}
	n, failures := a.Lifecycle.DeleteContainer(req.Body.ContainerID)
	a.dropDone(deletequeue.Entry{ContainerID: req.Body.ContainerID})
	switch {
	case n == 0:
		return nil, server.Errorf(http.StatusNotFound, "container %s has no endpoint", req.Body.ContainerID)
	case failures > 0:
		return server.DeleteEndpoints206JSONResponse(failures), nil
	}
	return server.DeleteEndpoints200Response{}, nil
}

// GetEndpointConfig is GET /endpoint/{id}/config.
func (a *API) GetEndpointConfig(_ context.Context, req server.GetEndpointConfigRequestObject) (server.GetEndpointConfigResponseObject, error) {
	row, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	spec := endpointSpec(row)
	kernel, _ := a.Policy.Row(row.ID)
	spec.Options = rest.ConfigurationMap{optionAudit: string(endpoint.AuditOf(kernel.Audit))}
	return server.GetEndpointConfig200JSONResponse(rest.EndpointConfigurationStatus{Realized: spec}), nil
}

// PatchEndpointConfig is PATCH /endpoint/{id}/config.
func (a *API) PatchEndpointConfig(ctx context.Context, req server.PatchEndpointConfigRequestObject) (server.PatchEndpointConfigResponseObject, error) {
	row, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	if req.Body == nil {
		return nil, server.Errorf(http.StatusBadRequest, "the request has no body: want an EndpointConfigurationSpec")
	}
	audit, setAudit, err := parseAudit(req.Body.Options, "what can change of an endpoint is")
	if err != nil {
		return nil, err
	}
	if user := req.Body.LabelConfiguration.User; user != nil {
		if _, err := a.setUserLabels(ctx, row, user); err != nil {
			return nil, err
		}
	}
	if setAudit {
		if _, err := a.Lifecycle.SetAudit(ctx, row.ID, audit); err != nil {
			return nil, endpointError(err)
		}
	}
	return server.PatchEndpointConfig200Response{}, nil
}

// GetEndpointHealth is GET /endpoint/{id}/healthz.
func (a *API) GetEndpointHealth(_ context.Context, req server.GetEndpointHealthRequestObject) (server.GetEndpointHealthResponseObject, error) {
	row, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	return server.GetEndpointHealth200JSONResponse(a.endpointHealth(row)), nil
}

// endpointHealth reads the interface's programs from the kernel: what a health check is for is
// just what the agent would not otherwise notice.
func (a *API) endpointHealth(row endpoint.Endpoint) rest.EndpointHealth {
	h := rest.EndpointHealth{BPF: rest.EndpointHealthStatusOK, Policy: rest.EndpointHealthStatusOK, OverallHealth: rest.EndpointHealthStatusOK, Connected: true}
	switch row.State {
	case endpoint.StateReady, endpoint.StateRestoring:
	case endpoint.StateNotReady: // in force is what was before a change that failed
		h.Policy, h.OverallHealth = rest.EndpointHealthStatusWarning, rest.EndpointHealthStatusWarning
	case endpoint.StateDisconnecting, endpoint.StateDisconnected, endpoint.StateInvalid:
		return rest.EndpointHealth{BPF: rest.EndpointHealthStatusDisabled, Policy: rest.EndpointHealthStatusDisabled, OverallHealth: rest.EndpointHealthStatusDisabled}
	default:
		h.BPF, h.Policy, h.OverallHealth = rest.EndpointHealthStatusPending, rest.EndpointHealthStatusBootstrap, rest.EndpointHealthStatusPending
		return h
	}
	if attached, err := a.Programs.Attached(row.IfIndex); err != nil || !attached {
		h.BPF, h.OverallHealth, h.Connected = rest.EndpointHealthStatusFailure, rest.EndpointHealthStatusFailure, false
	}
	if kernel, _ := a.Policy.Row(row.ID); kernel.Locked || kernel.RuleSet == 0 {
		h.Policy, h.OverallHealth = rest.EndpointHealthStatusFailure, rest.EndpointHealthStatusFailure
	}
	return h
}

// GetEndpointLabels is GET /endpoint/{id}/labels.
func (a *API) GetEndpointLabels(_ context.Context, req server.GetEndpointLabelsRequestObject) (server.GetEndpointLabelsResponseObject, error) {
	row, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	return server.GetEndpointLabels200JSONResponse(rest.LabelConfiguration{
		Spec: rest.LabelConfigurationSpec{User: row.User.Strings()}, Status: labelStatus(row),
	}), nil
}

// PatchEndpointLabels is PATCH /endpoint/{id}/labels: it replaces the user's labels.
func (a *API) PatchEndpointLabels(ctx context.Context, req server.PatchEndpointLabelsRequestObject) (server.PatchEndpointLabelsResponseObject, error) {
	row, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	if req.Body == nil {
		return nil, server.Errorf(http.StatusBadRequest, "the request has no body: want a LabelConfigurationSpec")
	}
	if _, err := a.setUserLabels(ctx, row, req.Body.User); err != nil {
		return nil, err
	}
	return server.PatchEndpointLabels200Response{}, nil
}

// GetEndpointLog is GET /endpoint/{id}/log, newest first. It has also endpoints that are gone, or
// could not be made.
func (a *API) GetEndpointLog(_ context.Context, req server.GetEndpointLogRequestObject) (server.GetEndpointLogResponseObject, error) {
	ref, err := a.reference(req.ID)
	if err != nil {
		return nil, endpointError(err)
	}
	row, err := a.Registry.Find(ref)
	if err != nil {
		row, err = a.Registry.Past(ref)
	}
	if err != nil {
		return nil, endpointError(err)
	}
	out := logModel(row)
	slices.Reverse(out)
	return server.GetEndpointLog200JSONResponse(out), nil
}

func logModel(row endpoint.Endpoint) []rest.EndpointStatusChange {
	out := []rest.EndpointStatusChange{}
	for _, e := range row.Log {
		code := "ok"
		if !e.OK {
			code = "failed"
		}
		out = append(out, rest.EndpointStatusChange{
			Timestamp: e.Time.UTC().Format(time.RFC3339Nano), Code: code, Message: e.Message, State: rest.EndpointState(e.State),
		})
	}
	return out
}

func labelStatus(row endpoint.Endpoint) rest.LabelConfigurationStatus {
	return rest.LabelConfigurationStatus{
		Realized: rest.LabelConfigurationSpec{User: row.User.Strings()}, SecurityRelevant: row.IdentityLabels.Strings(),
		Derived: row.InfoLabels.Strings(), Disabled: row.Disabled.Strings(),
	}
}

func endpointSpec(row endpoint.Endpoint) rest.EndpointConfigurationSpec {
	return rest.EndpointConfigurationSpec{LabelConfiguration: rest.LabelConfigurationSpec{User: row.User.Strings()}}
}

func identityModel(id identity.ID, l labels.Set) rest.Identity {
	return rest.Identity{ID: int(id), Labels: l.Strings(), Temporary: id.IsTemporary()}
}

// endpointIdentity is the identity of a row.
func endpointIdentity(row endpoint.Endpoint) rest.Identity {
	m := identityModel(row.Identity, row.IdentityLabels)
	if m.Temporary {
		m.SeenAs = int(row.Seen())
	}
	return m
}

// endpointModel is the API's form of a row.
func (a *API) endpointModel(row endpoint.Endpoint) rest.Endpoint {
	pair := rest.AddressPair{}
	if row.IPv4.IsValid() {
		pair.IPv4 = row.IPv4.String()
	}
	if row.IPv6.IsValid() {
		pair.IPv6 = row.IPv6.String()
	}
	st := rest.EndpointStatus{
		State: rest.EndpointState(row.State),
		ExternalIdentifiers: rest.EndpointIdentifiers{
			CNIAttachmentID: row.AttachmentID(), ContainerID: row.ContainerID, ContainerName: row.ContainerName,
			K8SNamespace: row.Namespace, K8SPodName: row.PodName, PodName: row.Pod(),
		},
		Identity: endpointIdentity(row), Labels: labelStatus(row), Realized: endpointSpec(row),
		Health: a.endpointHealth(row), Log: logModel(row),
		Networking: rest.EndpointNetworking{
			Addressing: []rest.AddressPair{pair}, HostAddressing: a.hostAddressing(), HostMAC: row.HostMAC.String(), MAC: row.MAC.String(),
			InterfaceIndex: row.IfIndex, InterfaceName: row.IfName, ContainerInterfaceName: row.ContainerIfName,
		},
	}
	for _, p := range row.NamedPorts {
		st.NamedPorts = append(st.NamedPorts, rest.NamedPort{Name: p.Name, Port: int(p.Port), Protocol: datapath.ProtoName(p.Proto)})
	}
	st.Policy = a.endpointPolicy(row)
	return rest.Endpoint{ID: int(row.ID), Spec: endpointSpec(row), Status: st}
}
