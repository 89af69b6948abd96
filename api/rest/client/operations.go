package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/internal/raw"
)

// Health asks for the health of the agent and its parts; brief leaves out everything but the
// overall state.
func (c *Client) Health(ctx context.Context, brief bool) (rest.StatusResponse, error) {
	return get[rest.StatusResponse](ctx, c, with(c.raw.GetHealthz, &rest.GetHealthzParams{Brief: brief}))
}

// DebugInfo gets the agent's state for a bug report.
func (c *Client) DebugInfo(ctx context.Context) (rest.DebugInfo, error) {
	return get[rest.DebugInfo](ctx, c, c.raw.GetDebugInfo)
}

// Config asks for the configuration in force and the facts a CNI plugin needs.
func (c *Client) Config(ctx context.Context) (rest.DaemonConfiguration, error) {
	return get[rest.DaemonConfiguration](ctx, c, c.raw.GetConfig)
}

// PatchConfig changes options at run time.
func (c *Client) PatchConfig(ctx context.Context, spec rest.DaemonConfigurationSpec) error {
	return run(ctx, c, with(c.raw.PatchConfig, spec))
}

// AllocateIP asks for an address of each enabled family, or of the one in params.
func (c *Client) AllocateIP(ctx context.Context, params rest.AllocateIPParams) (rest.IPAMResponse, error) {
	return get[rest.IPAMResponse](ctx, c, with(c.raw.AllocateIP, &params))
}

// ReserveIP asks for one address.
func (c *Client) ReserveIP(ctx context.Context, ip string, params rest.ReserveIPParams) error {
	return run(ctx, c, with2(c.raw.ReserveIP, ip, &params))
}

// ReleaseIP gives an address back to a pool; an empty pool is the default one.
func (c *Client) ReleaseIP(ctx context.Context, ip, pool string) error {
	return run(ctx, c, with2(c.raw.ReleaseIP, ip, &rest.ReleaseIPParams{Pool: pool}))
}

// Endpoints lists the endpoints of the node that have all of labels. It gives a *Error with code
// 404 if labels are given and none has them.
func (c *Client) Endpoints(ctx context.Context, labels []string) ([]rest.Endpoint, error) {
	do := with(c.raw.ListEndpoints, labels)
	if len(labels) == 0 {
		do = with2(c.raw.ListEndpointsWithBody, "application/json", io.Reader(nil))
	}
	return list[rest.Endpoint](ctx, c, do)
}

// Endpoint gets an endpoint by its number or prefixed name.
func (c *Client) Endpoint(ctx context.Context, id string) (rest.Endpoint, error) {
	return get[rest.Endpoint](ctx, c, with(c.raw.GetEndpoint, id))
}

// CreateEndpoint creates an endpoint.
func (c *Client) CreateEndpoint(ctx context.Context, id string, req rest.EndpointChangeRequest) (rest.Endpoint, error) {
	return get[rest.Endpoint](ctx, c, with2(c.raw.CreateEndpoint, id, req))
}

// PatchEndpoint changes an endpoint.
func (c *Client) PatchEndpoint(ctx context.Context, id string, req rest.EndpointChangeRequest) (rest.Endpoint, error) {
	return get[rest.Endpoint](ctx, c, with2(c.raw.PatchEndpoint, id, req))
}

// DeleteEndpoint deletes an endpoint. The endpoint is gone when err is nil; errs then counts
// what could not be cleaned up.
func (c *Client) DeleteEndpoint(ctx context.Context, id string) (errs int, err error) {
	return remove(ctx, c, with(c.raw.DeleteEndpoint, id))
}

// DeleteEndpoints deletes all endpoints of a container, like DeleteEndpoint.
func (c *Client) DeleteEndpoints(ctx context.Context, containerID string) (errs int, err error) {
	return remove(ctx, c, with(c.raw.DeleteEndpoints, rest.EndpointBatchDeleteRequest{ContainerID: containerID}))
}

// EndpointHealth gets an endpoint's health.
func (c *Client) EndpointHealth(ctx context.Context, id string) (rest.EndpointHealth, error) {
	return get[rest.EndpointHealth](ctx, c, with(c.raw.GetEndpointHealth, id))
}

// EndpointLog gets what happened to an endpoint.
func (c *Client) EndpointLog(ctx context.Context, id string) ([]rest.EndpointStatusChange, error) {
	return list[rest.EndpointStatusChange](ctx, c, with(c.raw.GetEndpointLog, id))
}

// EndpointLabels gets an endpoint's labels.
func (c *Client) EndpointLabels(ctx context.Context, id string) (rest.LabelConfiguration, error) {
	return get[rest.LabelConfiguration](ctx, c, with(c.raw.GetEndpointLabels, id))
}

// PatchEndpointLabels replaces an endpoint's user labels.
func (c *Client) PatchEndpointLabels(ctx context.Context, id string, user []string) error {
	return run(ctx, c, with2(c.raw.PatchEndpointLabels, id, rest.LabelConfigurationSpec{User: user}))
}

// EndpointConfig gets an endpoint's options.
func (c *Client) EndpointConfig(ctx context.Context, id string) (rest.EndpointConfigurationStatus, error) {
	return get[rest.EndpointConfigurationStatus](ctx, c, with(c.raw.GetEndpointConfig, id))
}

// PatchEndpointConfig changes an endpoint's options.
func (c *Client) PatchEndpointConfig(ctx context.Context, id string, spec rest.EndpointConfigurationSpec) error {
	return run(ctx, c, with2(c.raw.PatchEndpointConfig, id, spec))
}

// Identities lists the identities the node knows, or the one of exactly these labels.
func (c *Client) Identities(ctx context.Context, labels []string) ([]rest.Identity, error) {
	do := with(c.raw.ListIdentities, labels)
	if len(labels) == 0 {
		do = with2(c.raw.ListIdentitiesWithBody, "application/json", io.Reader(nil))
	}
	return list[rest.Identity](ctx, c, do)
}

// Identity gets an identity by its number.
func (c *Client) Identity(ctx context.Context, id string) (rest.Identity, error) {
	return get[rest.Identity](ctx, c, with(c.raw.GetIdentity, id))
}

// IdentityEndpoints lists the identities local endpoints use, with how many use each.
func (c *Client) IdentityEndpoints(ctx context.Context) ([]rest.IdentityEndpoints, error) {
	return list[rest.IdentityEndpoints](ctx, c, c.raw.ListIdentityEndpoints)
}

// IPs lists addresses with their identities, inside cidr if it is not empty and with all of labels.
func (c *Client) IPs(ctx context.Context, cidr string, labels []string) ([]rest.IPListEntry, error) {
	params := &rest.ListIPsParams{CIDR: cidr}
	do := with2(c.raw.ListIPs, params, labels)
	if len(labels) == 0 {
		do = func(ctx context.Context, edit ...raw.RequestEditorFn) (*http.Response, error) {
			return c.raw.ListIPsWithBody(ctx, params, "application/json", nil, edit...)
		}
	}
	return list[rest.IPListEntry](ctx, c, do)
}

// Services lists the frontends of services and where they lead.
func (c *Client) Services(ctx context.Context) ([]rest.Service, error) {
	return list[rest.Service](ctx, c, c.raw.ListServices)
}

// Policy gets the rules in force.
func (c *Client) Policy(ctx context.Context) (rest.Policy, error) {
	return get[rest.Policy](ctx, c, c.raw.GetPolicy)
}

// PolicyFiles lists the files of the static policy directory.
func (c *Client) PolicyFiles(ctx context.Context) ([]rest.PolicyFile, error) {
	return list[rest.PolicyFile](ctx, c, c.raw.ListPolicyFiles)
}

// Selectors lists the peer selectors in use.
func (c *Client) Selectors(ctx context.Context) ([]rest.SelectorIdentityMapping, error) {
	return list[rest.SelectorIdentityMapping](ctx, c, c.raw.ListSelectors)
}

// SubjectSelectors lists the subject selectors in use.
func (c *Client) SubjectSelectors(ctx context.Context) ([]rest.SelectorIdentityMapping, error) {
	return list[rest.SelectorIdentityMapping](ctx, c, c.raw.ListSubjectSelectors)
}

// TracePolicy asks why one side would reach the other.
func (c *Client) TracePolicy(ctx context.Context, params rest.TracePolicyParams) (rest.PolicyTrace, error) {
	return get[rest.PolicyTrace](ctx, c, with(c.raw.TracePolicy, &params))
}

// NodeIDs lists the numbers the node gave to nodes.
func (c *Client) NodeIDs(ctx context.Context) ([]rest.NodeID, error) {
	return list[rest.NodeID](ctx, c, c.raw.ListNodeIDs)
}

// ClusterNodes lists the nodes, or what changed since the answer that gave clientID.
func (c *Client) ClusterNodes(ctx context.Context, clientID int) (rest.ClusterNodeStatus, error) {
	return get[rest.ClusterNodeStatus](ctx, c, with(c.raw.GetClusterNodes, &rest.GetClusterNodesParams{ClientID: clientID}))
}

// Map gets the content of a kernel map: endpoints, policy, ipcache, ct or metrics.
func (c *Client) Map(ctx context.Context, name string) (rest.BPFMap, error) {
	return get[rest.BPFMap](ctx, c, with(c.raw.GetMap, name))
}

// ClusterHealth gets which nodes the agent's one reaches. An agent that probes none answers with
// status 501.
func (c *Client) ClusterHealth(ctx context.Context) (rest.HealthStatus, error) {
	return get[rest.HealthStatus](ctx, c, c.raw.GetClusterHealth)
}

// maxEventBytes bounds one line of the event stream.
const maxEventBytes = 64 << 10

// Monitor calls fn for each event of the given kinds (all if there are none) until ctx ends, the
// agent goes away or fn returns an error, and returns the reason. The end of the stream by the
// agent is an *UnreachableError that wraps io.ErrUnexpectedEOF.
func (c *Client) Monitor(ctx context.Context, kinds []rest.MonitorEventType, fn func(rest.MonitorEvent) error) error {
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = string(kind)
	}
	params := &rest.MonitorParams{Type: strings.Join(names, ",")}
	return stream(ctx, c, []int{http.StatusOK}, with(c.raw.Monitor, params), func(resp *http.Response) error {
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(make([]byte, 0, 4096), maxEventBytes)
		lines.Split(completeLines)
		for lines.Scan() {
			var ev rest.MonitorEvent
			if err := json.Unmarshal(lines.Bytes(), &ev); err != nil {
				return fmt.Errorf("event of the agent at %s: %w", c.host, err)
			}
			if err := fn(ev); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		err := lines.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("event of the agent at %s is longer than %d bytes", c.host, maxEventBytes)
		}
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return &UnreachableError{Host: c.host, Err: err}
	})
}

// completeLines splits off lines without their end. What follows the last end is no line: the
// stream was cut in the middle of an event.
func completeLines(data []byte, _ bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	return 0, nil, nil
}
