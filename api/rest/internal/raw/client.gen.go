// Code generated from api/openapi.yaml by oapi-codegen v2.8.2. DO NOT EDIT.

package raw

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/oapi-codegen/runtime"

	. "github.com/hawser-net/hawser/api/rest"
)

// RequestEditorFn is the function signature for the RequestEditor callback function
type RequestEditorFn func(ctx context.Context, req *http.Request) error

// Doer performs HTTP requests.
//
// The standard http.Client implements this interface.
type HttpRequestDoer interface {
	Do(req *http.Request) (*http.Response, error)
}

// Client which conforms to the OpenAPI3 specification for this service.
type Client struct {
	// The endpoint of the server conforming to this interface, with scheme,
	// https://api.deepmap.com for example. This can contain a path relative
	// to the server, such as https://api.deepmap.com/dev-test, and all the
	// paths in the swagger spec will be appended to the server.
	Server string

	// Doer for performing requests, typically a *http.Client with any
	// customized settings, such as certificate chains.
	Client HttpRequestDoer

	// A list of callbacks for modifying requests which are generated before sending over
	// the network.
	RequestEditors []RequestEditorFn
}

// ClientOption allows setting custom parameters during construction
type ClientOption func(*Client) error

// Creates a new Client, with reasonable defaults
func NewClient(server string, opts ...ClientOption) (*Client, error) {
	// create a client with sane default values
	client := Client{
		Server: server,
	}
	// mutate client and add all optional params
	for _, o := range opts {
		if err := o(&client); err != nil {
			return nil, err
		}
	}
	// ensure the server URL always has a trailing slash
	if !strings.HasSuffix(client.Server, "/") {
		client.Server += "/"
	}
	// create httpClient, if not already present
	if client.Client == nil {
		client.Client = &http.Client{}
	}
	return &client, nil
}

// WithHTTPClient allows overriding the default Doer, which is
// automatically created using http.Client. This is useful for tests.
func WithHTTPClient(doer HttpRequestDoer) ClientOption {
	return func(c *Client) error {
		c.Client = doer
		return nil
	}
}

// WithRequestEditorFn allows setting up a callback function, which will be
// called right before sending the request. This can be used to mutate the request.
func WithRequestEditorFn(fn RequestEditorFn) ClientOption {
	return func(c *Client) error {
		c.RequestEditors = append(c.RequestEditors, fn)
		return nil
	}
}

// The interface specification for the client above.
type ClientInterface interface {

	// ListBGPPeers Peers of BGP, which is not supported
	//
	// Corresponds with GET /bgp/peers (the `ListBGPPeers` operationId).
	ListBGPPeers(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListBGPRoutePolicies Policies of BGP, which is not supported
	//
	// Corresponds with GET /bgp/route-policies (the `ListBGPRoutePolicies` operationId).
	ListBGPRoutePolicies(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListBGPRoutes Routes of BGP, which is not supported
	//
	// Corresponds with GET /bgp/routes (the `ListBGPRoutes` operationId).
	ListBGPRoutes(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetCgroupMetadata Cgroups of pods, which nothing here needs; the list is empty
	//
	// Corresponds with GET /cgroup-dump-metadata (the `GetCgroupMetadata` operationId).
	GetCgroupMetadata(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetClusterHealth Hawser: which nodes this one reaches, and since when it does not
	//
	// The same is GET /v1beta/status of the socket health.sock beside this one, for clients that ask there.
	//
	// Corresponds with GET /cluster/health (the `GetClusterHealth` operationId).
	GetClusterHealth(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetClusterNodes List the nodes, or what changed since this client asked last
	//
	// Corresponds with GET /cluster/nodes (the `GetClusterNodes` operationId).
	GetClusterNodes(ctx context.Context, params *GetClusterNodesParams, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetConfig Configuration in force and facts a CNI plugin needs
	//
	// Corresponds with GET /config (the `GetConfig` operationId).
	GetConfig(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// PatchConfigWithBody Change options that can change at run time
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with PATCH /config (the `PatchConfig` operationId).
	PatchConfigWithBody(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// PatchConfig Change options that can change at run time
	//
	// Takes a body of the `application/json` content type.
	//
	// Corresponds with PATCH /config (the `PatchConfig` operationId).
	PatchConfig(ctx context.Context, body PatchConfigJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetDebugInfo The state of the agent for a bug report, without secrets
	//
	// Corresponds with GET /debuginfo (the `GetDebugInfo` operationId).
	GetDebugInfo(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// DeleteEndpointsWithBody Delete all endpoints of a container
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with DELETE /endpoint (the `DeleteEndpoints` operationId).
	DeleteEndpointsWithBody(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// DeleteEndpoints Delete all endpoints of a container
	//
	// Takes a body of the `application/json` content type.
	//
	// Corresponds with DELETE /endpoint (the `DeleteEndpoints` operationId).
	DeleteEndpoints(ctx context.Context, body DeleteEndpointsJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListEndpointsWithBody List the endpoints of this node
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with GET /endpoint (the `ListEndpoints` operationId).
	ListEndpointsWithBody(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListEndpoints List the endpoints of this node
	//
	// Takes a body of the `application/json` content type.
	//
	// Corresponds with GET /endpoint (the `ListEndpoints` operationId).
	ListEndpoints(ctx context.Context, body ListEndpointsJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error)

	// DeleteEndpoint Delete an endpoint
	//
	// Corresponds with DELETE /endpoint/{id} (the `DeleteEndpoint` operationId).
	DeleteEndpoint(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetEndpoint Get an endpoint
	//
	// Corresponds with GET /endpoint/{id} (the `GetEndpoint` operationId).
	GetEndpoint(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error)

	// PatchEndpointWithBody Change an endpoint
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with PATCH /endpoint/{id} (the `PatchEndpoint` operationId).
	PatchEndpointWithBody(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// PatchEndpoint Change an endpoint
	//
	// Takes a body of the `application/json` content type.
	//
	// Corresponds with PATCH /endpoint/{id} (the `PatchEndpoint` operationId).
	PatchEndpoint(ctx context.Context, id EndpointID, body PatchEndpointJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error)

	// CreateEndpointWithBody Create an endpoint
	//
	// It returns when the kernel enforces the endpoint's policy, so that sync-build-endpoint must not be
	// false. Where Kubernetes is the source of a pod's labels the request must have none.
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with PUT /endpoint/{id} (the `CreateEndpoint` operationId).
	CreateEndpointWithBody(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// CreateEndpoint Create an endpoint
	//
	// It returns when the kernel enforces the endpoint's policy, so that sync-build-endpoint must not be
	// false. Where Kubernetes is the source of a pod's labels the request must have none.
	//
	// Takes a body of the `application/json` content type.
	//
	// Corresponds with PUT /endpoint/{id} (the `CreateEndpoint` operationId).
	CreateEndpoint(ctx context.Context, id EndpointID, body CreateEndpointJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetEndpointConfig Get an endpoint's options
	//
	// Corresponds with GET /endpoint/{id}/config (the `GetEndpointConfig` operationId).
	GetEndpointConfig(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error)

	// PatchEndpointConfigWithBody Change an endpoint's options
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with PATCH /endpoint/{id}/config (the `PatchEndpointConfig` operationId).
	PatchEndpointConfigWithBody(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// PatchEndpointConfig Change an endpoint's options
	//
	// Takes a body of the `application/json` content type.
	//
	// Corresponds with PATCH /endpoint/{id}/config (the `PatchEndpointConfig` operationId).
	PatchEndpointConfig(ctx context.Context, id EndpointID, body PatchEndpointConfigJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetEndpointHealth Get an endpoint's health
	//
	// Corresponds with GET /endpoint/{id}/healthz (the `GetEndpointHealth` operationId).
	GetEndpointHealth(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetEndpointLabels Get an endpoint's labels
	//
	// Corresponds with GET /endpoint/{id}/labels (the `GetEndpointLabels` operationId).
	GetEndpointLabels(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error)

	// PatchEndpointLabelsWithBody Replace an endpoint's user labels
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with PATCH /endpoint/{id}/labels (the `PatchEndpointLabels` operationId).
	PatchEndpointLabelsWithBody(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// PatchEndpointLabels Replace an endpoint's user labels
	//
	// Takes a body of the `application/json` content type.
	//
	// Corresponds with PATCH /endpoint/{id}/labels (the `PatchEndpointLabels` operationId).
	PatchEndpointLabels(ctx context.Context, id EndpointID, body PatchEndpointLabelsJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetEndpointLog Get what happened to an endpoint, newest first; also to one of the last that are gone
	//
	// Corresponds with GET /endpoint/{id}/log (the `GetEndpointLog` operationId).
	GetEndpointLog(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error)

	// DeleteFQDNs Forget names that pods have looked up; there are none
	//
	// Corresponds with DELETE /fqdn/cache (the `DeleteFQDNs` operationId).
	DeleteFQDNs(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListFQDNs Names that pods have looked up; there is no proxy that sees them
	//
	// Corresponds with GET /fqdn/cache (the `ListFQDNs` operationId).
	ListFQDNs(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListEndpointFQDNs Names that an endpoint has looked up; there is no proxy that sees them
	//
	// Corresponds with GET /fqdn/cache/{id} (the `ListEndpointFQDNs` operationId).
	ListEndpointFQDNs(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetFQDNNames Selectors of names, which policies here cannot have
	//
	// Corresponds with GET /fqdn/names (the `GetFQDNNames` operationId).
	GetFQDNNames(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetHealthz Health of the agent and of its parts
	//
	// Corresponds with GET /healthz (the `GetHealthz` operationId).
	GetHealthz(ctx context.Context, params *GetHealthzParams, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListIdentitiesWithBody List the identities this node knows
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with GET /identity (the `ListIdentities` operationId).
	ListIdentitiesWithBody(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListIdentities List the identities this node knows
	//
	// Takes a body of the `application/json` content type.
	//
	// Corresponds with GET /identity (the `ListIdentities` operationId).
	ListIdentities(ctx context.Context, body ListIdentitiesJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListIdentityEndpoints List the identities local endpoints use, with how many use each
	//
	// Corresponds with GET /identity/endpoints (the `ListIdentityEndpoints` operationId).
	ListIdentityEndpoints(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetIdentity Get an identity by its number
	//
	// Corresponds with GET /identity/{id} (the `GetIdentity` operationId).
	GetIdentity(ctx context.Context, id string, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListIPsWithBody List addresses with their identities
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with GET /ip (the `ListIPs` operationId).
	ListIPsWithBody(ctx context.Context, params *ListIPsParams, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListIPs List addresses with their identities
	//
	// Takes a body of the `application/json` content type.
	//
	// Corresponds with GET /ip (the `ListIPs` operationId).
	ListIPs(ctx context.Context, params *ListIPsParams, body ListIPsJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error)

	// AllocateIP Allocate an address of each enabled family, or of one
	//
	// Corresponds with POST /ipam (the `AllocateIP` operationId).
	AllocateIP(ctx context.Context, params *AllocateIPParams, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ReleaseIP Release one address
	//
	// Corresponds with DELETE /ipam/{ip} (the `ReleaseIP` operationId).
	ReleaseIP(ctx context.Context, ip string, params *ReleaseIPParams, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ReserveIP Reserve one address
	//
	// Corresponds with POST /ipam/{ip} (the `ReserveIP` operationId).
	ReserveIP(ctx context.Context, ip string, params *ReserveIPParams, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListLRPs Local redirect policies, which are not supported; the list is empty
	//
	// Corresponds with GET /lrp (the `ListLRPs` operationId).
	ListLRPs(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListMaps List the kernel maps
	//
	// Corresponds with GET /map (the `ListMaps` operationId).
	ListMaps(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetMap Get the content of a kernel map
	//
	// Hawser's maps are endpoints, policy, ipcache, ct and metrics.
	//
	// Corresponds with GET /map/{name} (the `GetMap` operationId).
	GetMap(ctx context.Context, name string, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListMapEvents Changes of a kernel map; none are kept
	//
	// Corresponds with GET /map/{name}/events (the `ListMapEvents` operationId).
	ListMapEvents(ctx context.Context, name string, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListMetrics The values of all metrics now
	//
	// Corresponds with GET /metrics (the `ListMetrics` operationId).
	ListMetrics(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// Monitor Hawser: stream datapath events as JSON lines until the client closes
	//
	// Corresponds with GET /monitor (the `Monitor` operationId).
	Monitor(ctx context.Context, params *MonitorParams, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListNodeIDs List the numbers this node gave to nodes
	//
	// Corresponds with GET /node/ids (the `ListNodeIDs` operationId).
	ListNodeIDs(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetPolicy Get all rules in force
	//
	// Corresponds with GET /policy (the `GetPolicy` operationId).
	GetPolicy(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListPolicyFiles Hawser: list the files of the static policy directory and the policies of Kubernetes
	//
	// Corresponds with GET /policy/files (the `ListPolicyFiles` operationId).
	ListPolicyFiles(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListSelectors List the peer selectors in use and the identities each selects
	//
	// Corresponds with GET /policy/selectors (the `ListSelectors` operationId).
	ListSelectors(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListSubjectSelectors List the subject selectors in use and the identities each selects
	//
	// Corresponds with GET /policy/subject-selectors (the `ListSubjectSelectors` operationId).
	ListSubjectSelectors(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// TracePolicy Hawser: explain why one side would reach the other, rule by rule
	//
	// A side is an endpoint id as everywhere in this API (`12`, `cep-name:default/web`), an
	// address (`10.0.0.1`, `fd00::1`), `identity:<number>`, or
	// `labels:<source:key=value>[;<source:key=value>...]`.
	//
	// Corresponds with GET /policy/trace (the `TracePolicy` operationId).
	TracePolicy(ctx context.Context, params *TracePolicyParams, reqEditors ...RequestEditorFn) (*http.Response, error)

	// DeletePrefilter Remove prefixes to filter; there is no such filter
	//
	// Corresponds with DELETE /prefilter (the `DeletePrefilter` operationId).
	DeletePrefilter(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// GetPrefilter Prefixes that are filtered before all else; there is no such filter
	//
	// Corresponds with GET /prefilter (the `GetPrefilter` operationId).
	GetPrefilter(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// PatchPrefilter Add prefixes to filter; there is no such filter
	//
	// Corresponds with PATCH /prefilter (the `PatchPrefilter` operationId).
	PatchPrefilter(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListServices List the frontends of services and where they lead
	//
	// Corresponds with GET /service (the `ListServices` operationId).
	ListServices(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error)
}

// ListBGPPeers Peers of BGP, which is not supported
//
// Corresponds with GET /bgp/peers (the `ListBGPPeers` operationId).
func (c *Client) ListBGPPeers(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListBGPPeersRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListBGPRoutePolicies Policies of BGP, which is not supported
//
// Corresponds with GET /bgp/route-policies (the `ListBGPRoutePolicies` operationId).
func (c *Client) ListBGPRoutePolicies(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListBGPRoutePoliciesRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListBGPRoutes Routes of BGP, which is not supported
//
// Corresponds with GET /bgp/routes (the `ListBGPRoutes` operationId).
func (c *Client) ListBGPRoutes(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListBGPRoutesRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetCgroupMetadata Cgroups of pods, which nothing here needs; the list is empty
//
// Corresponds with GET /cgroup-dump-metadata (the `GetCgroupMetadata` operationId).
func (c *Client) GetCgroupMetadata(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetCgroupMetadataRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetClusterHealth Hawser: which nodes this one reaches, and since when it does not
//
// The same is GET /v1beta/status of the socket health.sock beside this one, for clients that ask there.
//
// Corresponds with GET /cluster/health (the `GetClusterHealth` operationId).
func (c *Client) GetClusterHealth(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetClusterHealthRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetClusterNodes List the nodes, or what changed since this client asked last
//
// Corresponds with GET /cluster/nodes (the `GetClusterNodes` operationId).
func (c *Client) GetClusterNodes(ctx context.Context, params *GetClusterNodesParams, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetClusterNodesRequest(c.Server, params)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetConfig Configuration in force and facts a CNI plugin needs
//
// Corresponds with GET /config (the `GetConfig` operationId).
func (c *Client) GetConfig(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetConfigRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// PatchConfigWithBody Change options that can change at run time
//
// Takes any type of body and a specified content type.
//
// Corresponds with PATCH /config (the `PatchConfig` operationId).
func (c *Client) PatchConfigWithBody(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewPatchConfigRequestWithBody(c.Server, contentType, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// PatchConfig Change options that can change at run time
//
// Takes a body of the `application/json` content type.
//
// Corresponds with PATCH /config (the `PatchConfig` operationId).
func (c *Client) PatchConfig(ctx context.Context, body PatchConfigJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewPatchConfigRequest(c.Server, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetDebugInfo The state of the agent for a bug report, without secrets
//
// Corresponds with GET /debuginfo (the `GetDebugInfo` operationId).
func (c *Client) GetDebugInfo(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetDebugInfoRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// DeleteEndpointsWithBody Delete all endpoints of a container
//
// Takes any type of body and a specified content type.
//
// Corresponds with DELETE /endpoint (the `DeleteEndpoints` operationId).
func (c *Client) DeleteEndpointsWithBody(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewDeleteEndpointsRequestWithBody(c.Server, contentType, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// DeleteEndpoints Delete all endpoints of a container
//
// Takes a body of the `application/json` content type.
//
// Corresponds with DELETE /endpoint (the `DeleteEndpoints` operationId).
func (c *Client) DeleteEndpoints(ctx context.Context, body DeleteEndpointsJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewDeleteEndpointsRequest(c.Server, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListEndpointsWithBody List the endpoints of this node
//
// Takes any type of body and a specified content type.
//
// Corresponds with GET /endpoint (the `ListEndpoints` operationId).
func (c *Client) ListEndpointsWithBody(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListEndpointsRequestWithBody(c.Server, contentType, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListEndpoints List the endpoints of this node
//
// Takes a body of the `application/json` content type.
//
// Corresponds with GET /endpoint (the `ListEndpoints` operationId).
func (c *Client) ListEndpoints(ctx context.Context, body ListEndpointsJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListEndpointsRequest(c.Server, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// DeleteEndpoint Delete an endpoint
//
// Corresponds with DELETE /endpoint/{id} (the `DeleteEndpoint` operationId).
func (c *Client) DeleteEndpoint(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewDeleteEndpointRequest(c.Server, id)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetEndpoint Get an endpoint
//
// Corresponds with GET /endpoint/{id} (the `GetEndpoint` operationId).
func (c *Client) GetEndpoint(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetEndpointRequest(c.Server, id)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// PatchEndpointWithBody Change an endpoint
//
// Takes any type of body and a specified content type.
//
// Corresponds with PATCH /endpoint/{id} (the `PatchEndpoint` operationId).
func (c *Client) PatchEndpointWithBody(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewPatchEndpointRequestWithBody(c.Server, id, contentType, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// PatchEndpoint Change an endpoint
//
// Takes a body of the `application/json` content type.
//
// Corresponds with PATCH /endpoint/{id} (the `PatchEndpoint` operationId).
func (c *Client) PatchEndpoint(ctx context.Context, id EndpointID, body PatchEndpointJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewPatchEndpointRequest(c.Server, id, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// CreateEndpointWithBody Create an endpoint
//
// It returns when the kernel enforces the endpoint's policy, so that sync-build-endpoint must not be
// false. Where Kubernetes is the source of a pod's labels the request must have none.
//
// Takes any type of body and a specified content type.
//
// Corresponds with PUT /endpoint/{id} (the `CreateEndpoint` operationId).
func (c *Client) CreateEndpointWithBody(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewCreateEndpointRequestWithBody(c.Server, id, contentType, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// CreateEndpoint Create an endpoint
//
// It returns when the kernel enforces the endpoint's policy, so that sync-build-endpoint must not be
// false. Where Kubernetes is the source of a pod's labels the request must have none.
//
// Takes a body of the `application/json` content type.
//
// Corresponds with PUT /endpoint/{id} (the `CreateEndpoint` operationId).
func (c *Client) CreateEndpoint(ctx context.Context, id EndpointID, body CreateEndpointJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewCreateEndpointRequest(c.Server, id, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetEndpointConfig Get an endpoint's options
//
// Corresponds with GET /endpoint/{id}/config (the `GetEndpointConfig` operationId).
func (c *Client) GetEndpointConfig(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetEndpointConfigRequest(c.Server, id)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// PatchEndpointConfigWithBody Change an endpoint's options
//
// Takes any type of body and a specified content type.
//
// Corresponds with PATCH /endpoint/{id}/config (the `PatchEndpointConfig` operationId).
func (c *Client) PatchEndpointConfigWithBody(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewPatchEndpointConfigRequestWithBody(c.Server, id, contentType, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// PatchEndpointConfig Change an endpoint's options
//
// Takes a body of the `application/json` content type.
//
// Corresponds with PATCH /endpoint/{id}/config (the `PatchEndpointConfig` operationId).
func (c *Client) PatchEndpointConfig(ctx context.Context, id EndpointID, body PatchEndpointConfigJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewPatchEndpointConfigRequest(c.Server, id, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetEndpointHealth Get an endpoint's health
//
// Corresponds with GET /endpoint/{id}/healthz (the `GetEndpointHealth` operationId).
func (c *Client) GetEndpointHealth(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetEndpointHealthRequest(c.Server, id)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetEndpointLabels Get an endpoint's labels
//
// Corresponds with GET /endpoint/{id}/labels (the `GetEndpointLabels` operationId).
func (c *Client) GetEndpointLabels(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetEndpointLabelsRequest(c.Server, id)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// PatchEndpointLabelsWithBody Replace an endpoint's user labels
//
// Takes any type of body and a specified content type.
//
// Corresponds with PATCH /endpoint/{id}/labels (the `PatchEndpointLabels` operationId).
func (c *Client) PatchEndpointLabelsWithBody(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewPatchEndpointLabelsRequestWithBody(c.Server, id, contentType, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// PatchEndpointLabels Replace an endpoint's user labels
//
// Takes a body of the `application/json` content type.
//
// Corresponds with PATCH /endpoint/{id}/labels (the `PatchEndpointLabels` operationId).
func (c *Client) PatchEndpointLabels(ctx context.Context, id EndpointID, body PatchEndpointLabelsJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewPatchEndpointLabelsRequest(c.Server, id, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetEndpointLog Get what happened to an endpoint, newest first; also to one of the last that are gone
//
// Corresponds with GET /endpoint/{id}/log (the `GetEndpointLog` operationId).
func (c *Client) GetEndpointLog(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetEndpointLogRequest(c.Server, id)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// DeleteFQDNs Forget names that pods have looked up; there are none
//
// Corresponds with DELETE /fqdn/cache (the `DeleteFQDNs` operationId).
func (c *Client) DeleteFQDNs(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewDeleteFQDNsRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListFQDNs Names that pods have looked up; there is no proxy that sees them
//
// Corresponds with GET /fqdn/cache (the `ListFQDNs` operationId).
func (c *Client) ListFQDNs(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListFQDNsRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListEndpointFQDNs Names that an endpoint has looked up; there is no proxy that sees them
//
// Corresponds with GET /fqdn/cache/{id} (the `ListEndpointFQDNs` operationId).
func (c *Client) ListEndpointFQDNs(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListEndpointFQDNsRequest(c.Server, id)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetFQDNNames Selectors of names, which policies here cannot have
//
// Corresponds with GET /fqdn/names (the `GetFQDNNames` operationId).
func (c *Client) GetFQDNNames(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetFQDNNamesRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetHealthz Health of the agent and of its parts
//
// Corresponds with GET /healthz (the `GetHealthz` operationId).
func (c *Client) GetHealthz(ctx context.Context, params *GetHealthzParams, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetHealthzRequest(c.Server, params)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListIdentitiesWithBody List the identities this node knows
//
// Takes any type of body and a specified content type.
//
// Corresponds with GET /identity (the `ListIdentities` operationId).
func (c *Client) ListIdentitiesWithBody(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListIdentitiesRequestWithBody(c.Server, contentType, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListIdentities List the identities this node knows
//
// Takes a body of the `application/json` content type.
//
// Corresponds with GET /identity (the `ListIdentities` operationId).
func (c *Client) ListIdentities(ctx context.Context, body ListIdentitiesJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListIdentitiesRequest(c.Server, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListIdentityEndpoints List the identities local endpoints use, with how many use each
//
// Corresponds with GET /identity/endpoints (the `ListIdentityEndpoints` operationId).
func (c *Client) ListIdentityEndpoints(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListIdentityEndpointsRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetIdentity Get an identity by its number
//
// Corresponds with GET /identity/{id} (the `GetIdentity` operationId).
func (c *Client) GetIdentity(ctx context.Context, id string, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetIdentityRequest(c.Server, id)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListIPsWithBody List addresses with their identities
//
// Takes any type of body and a specified content type.
//
// Corresponds with GET /ip (the `ListIPs` operationId).
func (c *Client) ListIPsWithBody(ctx context.Context, params *ListIPsParams, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListIPsRequestWithBody(c.Server, params, contentType, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListIPs List addresses with their identities
//
// Takes a body of the `application/json` content type.
//
// Corresponds with GET /ip (the `ListIPs` operationId).
func (c *Client) ListIPs(ctx context.Context, params *ListIPsParams, body ListIPsJSONRequestBody, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListIPsRequest(c.Server, params, body)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// AllocateIP Allocate an address of each enabled family, or of one
//
// Corresponds with POST /ipam (the `AllocateIP` operationId).
func (c *Client) AllocateIP(ctx context.Context, params *AllocateIPParams, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewAllocateIPRequest(c.Server, params)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ReleaseIP Release one address
//
// Corresponds with DELETE /ipam/{ip} (the `ReleaseIP` operationId).
func (c *Client) ReleaseIP(ctx context.Context, ip string, params *ReleaseIPParams, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewReleaseIPRequest(c.Server, ip, params)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ReserveIP Reserve one address
//
// Corresponds with POST /ipam/{ip} (the `ReserveIP` operationId).
func (c *Client) ReserveIP(ctx context.Context, ip string, params *ReserveIPParams, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewReserveIPRequest(c.Server, ip, params)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListLRPs Local redirect policies, which are not supported; the list is empty
//
// Corresponds with GET /lrp (the `ListLRPs` operationId).
func (c *Client) ListLRPs(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListLRPsRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListMaps List the kernel maps
//
// Corresponds with GET /map (the `ListMaps` operationId).
func (c *Client) ListMaps(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListMapsRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetMap Get the content of a kernel map
//
// Hawser's maps are endpoints, policy, ipcache, ct and metrics.
//
// Corresponds with GET /map/{name} (the `GetMap` operationId).
func (c *Client) GetMap(ctx context.Context, name string, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetMapRequest(c.Server, name)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListMapEvents Changes of a kernel map; none are kept
//
// Corresponds with GET /map/{name}/events (the `ListMapEvents` operationId).
func (c *Client) ListMapEvents(ctx context.Context, name string, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListMapEventsRequest(c.Server, name)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListMetrics The values of all metrics now
//
// Corresponds with GET /metrics (the `ListMetrics` operationId).
func (c *Client) ListMetrics(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListMetricsRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// Monitor Hawser: stream datapath events as JSON lines until the client closes
//
// Corresponds with GET /monitor (the `Monitor` operationId).
func (c *Client) Monitor(ctx context.Context, params *MonitorParams, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewMonitorRequest(c.Server, params)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListNodeIDs List the numbers this node gave to nodes
//
// Corresponds with GET /node/ids (the `ListNodeIDs` operationId).
func (c *Client) ListNodeIDs(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListNodeIDsRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetPolicy Get all rules in force
//
// Corresponds with GET /policy (the `GetPolicy` operationId).
func (c *Client) GetPolicy(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetPolicyRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListPolicyFiles Hawser: list the files of the static policy directory and the policies of Kubernetes
//
// Corresponds with GET /policy/files (the `ListPolicyFiles` operationId).
func (c *Client) ListPolicyFiles(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListPolicyFilesRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListSelectors List the peer selectors in use and the identities each selects
//
// Corresponds with GET /policy/selectors (the `ListSelectors` operationId).
func (c *Client) ListSelectors(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListSelectorsRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListSubjectSelectors List the subject selectors in use and the identities each selects
//
// Corresponds with GET /policy/subject-selectors (the `ListSubjectSelectors` operationId).
func (c *Client) ListSubjectSelectors(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListSubjectSelectorsRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// TracePolicy Hawser: explain why one side would reach the other, rule by rule
//
// A side is an endpoint id as everywhere in this API (`12`, `cep-name:default/web`), an
// address (`10.0.0.1`, `fd00::1`), `identity:<number>`, or
// `labels:<source:key=value>[;<source:key=value>...]`.
//
// Corresponds with GET /policy/trace (the `TracePolicy` operationId).
func (c *Client) TracePolicy(ctx context.Context, params *TracePolicyParams, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewTracePolicyRequest(c.Server, params)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// DeletePrefilter Remove prefixes to filter; there is no such filter
//
// Corresponds with DELETE /prefilter (the `DeletePrefilter` operationId).
func (c *Client) DeletePrefilter(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewDeletePrefilterRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// GetPrefilter Prefixes that are filtered before all else; there is no such filter
//
// Corresponds with GET /prefilter (the `GetPrefilter` operationId).
func (c *Client) GetPrefilter(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewGetPrefilterRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// PatchPrefilter Add prefixes to filter; there is no such filter
//
// Corresponds with PATCH /prefilter (the `PatchPrefilter` operationId).
func (c *Client) PatchPrefilter(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewPatchPrefilterRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// ListServices List the frontends of services and where they lead
//
// Corresponds with GET /service (the `ListServices` operationId).
func (c *Client) ListServices(ctx context.Context, reqEditors ...RequestEditorFn) (*http.Response, error) {
	req, err := NewListServicesRequest(c.Server)
	if err != nil {
		return nil, err
	}
	req = req.WithContext(ctx)
	if err := c.applyEditors(ctx, req, reqEditors); err != nil {
		return nil, err
	}
	return c.Client.Do(req)
}

// NewListBGPPeersRequest constructs an http.Request for the ListBGPPeers method
func NewListBGPPeersRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/bgp/peers")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListBGPRoutePoliciesRequest constructs an http.Request for the ListBGPRoutePolicies method
func NewListBGPRoutePoliciesRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/bgp/route-policies")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListBGPRoutesRequest constructs an http.Request for the ListBGPRoutes method
func NewListBGPRoutesRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/bgp/routes")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetCgroupMetadataRequest constructs an http.Request for the GetCgroupMetadata method
func NewGetCgroupMetadataRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/cgroup-dump-metadata")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetClusterHealthRequest constructs an http.Request for the GetClusterHealth method
func NewGetClusterHealthRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/cluster/health")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetClusterNodesRequest constructs an http.Request for the GetClusterNodes method
func NewGetClusterNodesRequest(server string, params *GetClusterNodesParams) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/cluster/nodes")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	if params != nil {

		var headerParam0 string

		headerParam0, err = runtime.StyleParamWithOptions("simple", false, "client-id", params.ClientID, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationHeader, Type: "integer", Format: ""})
		if err != nil {
			return nil, err
		}

		req.Header.Set("client-id", headerParam0)

	}

	return req, nil
}

// NewGetConfigRequest constructs an http.Request for the GetConfig method
func NewGetConfigRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/config")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewPatchConfigRequest calls the generic PatchConfig builder with application/json body
func NewPatchConfigRequest(server string, body PatchConfigJSONRequestBody) (*http.Request, error) {
	var bodyReader io.Reader
	buf, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	bodyReader = bytes.NewReader(buf)
	return NewPatchConfigRequestWithBody(server, "application/json", bodyReader)
}

// NewPatchConfigRequestWithBody constructs an http.Request for the PatchConfig method, with any body, and a specified content type
func NewPatchConfigRequestWithBody(server string, contentType string, body io.Reader) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/config")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodPatch, queryURL.String(), body)
	if err != nil {
		return nil, err
	}

	req.Header.Add("Content-Type", contentType)

	return req, nil
}

// NewGetDebugInfoRequest constructs an http.Request for the GetDebugInfo method
func NewGetDebugInfoRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/debuginfo")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewDeleteEndpointsRequest calls the generic DeleteEndpoints builder with application/json body
func NewDeleteEndpointsRequest(server string, body DeleteEndpointsJSONRequestBody) (*http.Request, error) {
	var bodyReader io.Reader
	buf, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	bodyReader = bytes.NewReader(buf)
	return NewDeleteEndpointsRequestWithBody(server, "application/json", bodyReader)
}

// NewDeleteEndpointsRequestWithBody constructs an http.Request for the DeleteEndpoints method, with any body, and a specified content type
func NewDeleteEndpointsRequestWithBody(server string, contentType string, body io.Reader) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodDelete, queryURL.String(), body)
	if err != nil {
		return nil, err
	}

	req.Header.Add("Content-Type", contentType)

	return req, nil
}

// NewListEndpointsRequest calls the generic ListEndpoints builder with application/json body
func NewListEndpointsRequest(server string, body ListEndpointsJSONRequestBody) (*http.Request, error) {
	var bodyReader io.Reader
	buf, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	bodyReader = bytes.NewReader(buf)
	return NewListEndpointsRequestWithBody(server, "application/json", bodyReader)
}

// NewListEndpointsRequestWithBody constructs an http.Request for the ListEndpoints method, with any body, and a specified content type
func NewListEndpointsRequestWithBody(server string, contentType string, body io.Reader) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), body)
	if err != nil {
		return nil, err
	}

	req.Header.Add("Content-Type", contentType)

	return req, nil
}

// NewDeleteEndpointRequest constructs an http.Request for the DeleteEndpoint method
func NewDeleteEndpointRequest(server string, id EndpointID) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodDelete, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetEndpointRequest constructs an http.Request for the GetEndpoint method
func NewGetEndpointRequest(server string, id EndpointID) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewPatchEndpointRequest calls the generic PatchEndpoint builder with application/json body
func NewPatchEndpointRequest(server string, id EndpointID, body PatchEndpointJSONRequestBody) (*http.Request, error) {
	var bodyReader io.Reader
	buf, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	bodyReader = bytes.NewReader(buf)
	return NewPatchEndpointRequestWithBody(server, id, "application/json", bodyReader)
}

// NewPatchEndpointRequestWithBody constructs an http.Request for the PatchEndpoint method, with any body, and a specified content type
func NewPatchEndpointRequestWithBody(server string, id EndpointID, contentType string, body io.Reader) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodPatch, queryURL.String(), body)
	if err != nil {
		return nil, err
	}

	req.Header.Add("Content-Type", contentType)

	return req, nil
}

// NewCreateEndpointRequest calls the generic CreateEndpoint builder with application/json body
func NewCreateEndpointRequest(server string, id EndpointID, body CreateEndpointJSONRequestBody) (*http.Request, error) {
	var bodyReader io.Reader
	buf, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	bodyReader = bytes.NewReader(buf)
	return NewCreateEndpointRequestWithBody(server, id, "application/json", bodyReader)
}

// NewCreateEndpointRequestWithBody constructs an http.Request for the CreateEndpoint method, with any body, and a specified content type
func NewCreateEndpointRequestWithBody(server string, id EndpointID, contentType string, body io.Reader) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodPut, queryURL.String(), body)
	if err != nil {
		return nil, err
	}

	req.Header.Add("Content-Type", contentType)

	return req, nil
}

// NewGetEndpointConfigRequest constructs an http.Request for the GetEndpointConfig method
func NewGetEndpointConfigRequest(server string, id EndpointID) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s/config", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewPatchEndpointConfigRequest calls the generic PatchEndpointConfig builder with application/json body
func NewPatchEndpointConfigRequest(server string, id EndpointID, body PatchEndpointConfigJSONRequestBody) (*http.Request, error) {
	var bodyReader io.Reader
	buf, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	bodyReader = bytes.NewReader(buf)
	return NewPatchEndpointConfigRequestWithBody(server, id, "application/json", bodyReader)
}

// NewPatchEndpointConfigRequestWithBody constructs an http.Request for the PatchEndpointConfig method, with any body, and a specified content type
func NewPatchEndpointConfigRequestWithBody(server string, id EndpointID, contentType string, body io.Reader) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s/config", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodPatch, queryURL.String(), body)
	if err != nil {
		return nil, err
	}

	req.Header.Add("Content-Type", contentType)

	return req, nil
}

// NewGetEndpointHealthRequest constructs an http.Request for the GetEndpointHealth method
func NewGetEndpointHealthRequest(server string, id EndpointID) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s/healthz", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetEndpointLabelsRequest constructs an http.Request for the GetEndpointLabels method
func NewGetEndpointLabelsRequest(server string, id EndpointID) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s/labels", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewPatchEndpointLabelsRequest calls the generic PatchEndpointLabels builder with application/json body
func NewPatchEndpointLabelsRequest(server string, id EndpointID, body PatchEndpointLabelsJSONRequestBody) (*http.Request, error) {
	var bodyReader io.Reader
	buf, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	bodyReader = bytes.NewReader(buf)
	return NewPatchEndpointLabelsRequestWithBody(server, id, "application/json", bodyReader)
}

// NewPatchEndpointLabelsRequestWithBody constructs an http.Request for the PatchEndpointLabels method, with any body, and a specified content type
func NewPatchEndpointLabelsRequestWithBody(server string, id EndpointID, contentType string, body io.Reader) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s/labels", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodPatch, queryURL.String(), body)
	if err != nil {
		return nil, err
	}

	req.Header.Add("Content-Type", contentType)

	return req, nil
}

// NewGetEndpointLogRequest constructs an http.Request for the GetEndpointLog method
func NewGetEndpointLogRequest(server string, id EndpointID) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/endpoint/%s/log", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewDeleteFQDNsRequest constructs an http.Request for the DeleteFQDNs method
func NewDeleteFQDNsRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/fqdn/cache")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodDelete, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListFQDNsRequest constructs an http.Request for the ListFQDNs method
func NewListFQDNsRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/fqdn/cache")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListEndpointFQDNsRequest constructs an http.Request for the ListEndpointFQDNs method
func NewListEndpointFQDNsRequest(server string, id EndpointID) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/fqdn/cache/%s", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetFQDNNamesRequest constructs an http.Request for the GetFQDNNames method
func NewGetFQDNNamesRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/fqdn/names")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetHealthzRequest constructs an http.Request for the GetHealthz method
func NewGetHealthzRequest(server string, params *GetHealthzParams) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/healthz")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	if params != nil {

		var headerParam0 string

		headerParam0, err = runtime.StyleParamWithOptions("simple", false, "brief", params.Brief, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationHeader, Type: "boolean", Format: ""})
		if err != nil {
			return nil, err
		}

		req.Header.Set("brief", headerParam0)

		if params.RequireK8SConnectivity != nil {
			var headerParam1 string

			headerParam1, err = runtime.StyleParamWithOptions("simple", false, "require-k8s-connectivity", *params.RequireK8SConnectivity, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationHeader, Type: "boolean", Format: ""})
			if err != nil {
				return nil, err
			}

			req.Header.Set("require-k8s-connectivity", headerParam1)
		}

	}

	return req, nil
}

// NewListIdentitiesRequest calls the generic ListIdentities builder with application/json body
func NewListIdentitiesRequest(server string, body ListIdentitiesJSONRequestBody) (*http.Request, error) {
	var bodyReader io.Reader
	buf, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	bodyReader = bytes.NewReader(buf)
	return NewListIdentitiesRequestWithBody(server, "application/json", bodyReader)
}

// NewListIdentitiesRequestWithBody constructs an http.Request for the ListIdentities method, with any body, and a specified content type
func NewListIdentitiesRequestWithBody(server string, contentType string, body io.Reader) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/identity")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), body)
	if err != nil {
		return nil, err
	}

	req.Header.Add("Content-Type", contentType)

	return req, nil
}

// NewListIdentityEndpointsRequest constructs an http.Request for the ListIdentityEndpoints method
func NewListIdentityEndpointsRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/identity/endpoints")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetIdentityRequest constructs an http.Request for the GetIdentity method
func NewGetIdentityRequest(server string, id string) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "id", id, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/identity/%s", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListIPsRequest calls the generic ListIPs builder with application/json body
func NewListIPsRequest(server string, params *ListIPsParams, body ListIPsJSONRequestBody) (*http.Request, error) {
	var bodyReader io.Reader
	buf, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	bodyReader = bytes.NewReader(buf)
	return NewListIPsRequestWithBody(server, params, "application/json", bodyReader)
}

// NewListIPsRequestWithBody constructs an http.Request for the ListIPs method, with any body, and a specified content type
func NewListIPsRequestWithBody(server string, params *ListIPsParams, contentType string, body io.Reader) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/ip")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	if params != nil {
		// queryValues collects non-styled parameters (passthrough, JSON)
		// that are safe to round-trip through url.Values.Encode().
		queryValues := queryURL.Query()
		// rawQueryFragments collects pre-encoded query fragments from
		// styled parameters, preserving literal commas as delimiters
		// per the OpenAPI spec (e.g. "color=blue,black,brown").
		var rawQueryFragments []string

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "cidr", params.CIDR, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if encoded := queryValues.Encode(); encoded != "" {
			rawQueryFragments = append(rawQueryFragments, encoded)
		}
		queryURL.RawQuery = strings.Join(rawQueryFragments, "&")
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), body)
	if err != nil {
		return nil, err
	}

	req.Header.Add("Content-Type", contentType)

	return req, nil
}

// NewAllocateIPRequest constructs an http.Request for the AllocateIP method
func NewAllocateIPRequest(server string, params *AllocateIPParams) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/ipam")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	if params != nil {
		// queryValues collects non-styled parameters (passthrough, JSON)
		// that are safe to round-trip through url.Values.Encode().
		queryValues := queryURL.Query()
		// rawQueryFragments collects pre-encoded query fragments from
		// styled parameters, preserving literal commas as delimiters
		// per the OpenAPI spec (e.g. "color=blue,black,brown").
		var rawQueryFragments []string

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "family", params.Family, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "owner", params.Owner, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "pool", params.Pool, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if encoded := queryValues.Encode(); encoded != "" {
			rawQueryFragments = append(rawQueryFragments, encoded)
		}
		queryURL.RawQuery = strings.Join(rawQueryFragments, "&")
	}

	req, err := http.NewRequest(http.MethodPost, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	if params != nil {

		var headerParam0 string

		headerParam0, err = runtime.StyleParamWithOptions("simple", false, "expiration", params.Expiration, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationHeader, Type: "boolean", Format: ""})
		if err != nil {
			return nil, err
		}

		req.Header.Set("expiration", headerParam0)

	}

	return req, nil
}

// NewReleaseIPRequest constructs an http.Request for the ReleaseIP method
func NewReleaseIPRequest(server string, ip string, params *ReleaseIPParams) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "ip", ip, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/ipam/%s", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	if params != nil {
		// queryValues collects non-styled parameters (passthrough, JSON)
		// that are safe to round-trip through url.Values.Encode().
		queryValues := queryURL.Query()
		// rawQueryFragments collects pre-encoded query fragments from
		// styled parameters, preserving literal commas as delimiters
		// per the OpenAPI spec (e.g. "color=blue,black,brown").
		var rawQueryFragments []string

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "pool", params.Pool, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if encoded := queryValues.Encode(); encoded != "" {
			rawQueryFragments = append(rawQueryFragments, encoded)
		}
		queryURL.RawQuery = strings.Join(rawQueryFragments, "&")
	}

	req, err := http.NewRequest(http.MethodDelete, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewReserveIPRequest constructs an http.Request for the ReserveIP method
func NewReserveIPRequest(server string, ip string, params *ReserveIPParams) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "ip", ip, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/ipam/%s", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	if params != nil {
		// queryValues collects non-styled parameters (passthrough, JSON)
		// that are safe to round-trip through url.Values.Encode().
		queryValues := queryURL.Query()
		// rawQueryFragments collects pre-encoded query fragments from
		// styled parameters, preserving literal commas as delimiters
		// per the OpenAPI spec (e.g. "color=blue,black,brown").
		var rawQueryFragments []string

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "owner", params.Owner, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "pool", params.Pool, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if encoded := queryValues.Encode(); encoded != "" {
			rawQueryFragments = append(rawQueryFragments, encoded)
		}
		queryURL.RawQuery = strings.Join(rawQueryFragments, "&")
	}

	req, err := http.NewRequest(http.MethodPost, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListLRPsRequest constructs an http.Request for the ListLRPs method
func NewListLRPsRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/lrp")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListMapsRequest constructs an http.Request for the ListMaps method
func NewListMapsRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/map")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetMapRequest constructs an http.Request for the GetMap method
func NewGetMapRequest(server string, name string) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "name", name, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/map/%s", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListMapEventsRequest constructs an http.Request for the ListMapEvents method
func NewListMapEventsRequest(server string, name string) (*http.Request, error) {
	var err error

	var pathParam0 string

	pathParam0, err = runtime.StyleParamWithOptions("simple", false, "name", name, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationPath, Type: "string", Format: ""})
	if err != nil {
		return nil, err
	}

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/map/%s/events", pathParam0)
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListMetricsRequest constructs an http.Request for the ListMetrics method
func NewListMetricsRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/metrics")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewMonitorRequest constructs an http.Request for the Monitor method
func NewMonitorRequest(server string, params *MonitorParams) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/monitor")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	if params != nil {
		// queryValues collects non-styled parameters (passthrough, JSON)
		// that are safe to round-trip through url.Values.Encode().
		queryValues := queryURL.Query()
		// rawQueryFragments collects pre-encoded query fragments from
		// styled parameters, preserving literal commas as delimiters
		// per the OpenAPI spec (e.g. "color=blue,black,brown").
		var rawQueryFragments []string

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "type", params.Type, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if encoded := queryValues.Encode(); encoded != "" {
			rawQueryFragments = append(rawQueryFragments, encoded)
		}
		queryURL.RawQuery = strings.Join(rawQueryFragments, "&")
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListNodeIDsRequest constructs an http.Request for the ListNodeIDs method
func NewListNodeIDsRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/node/ids")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetPolicyRequest constructs an http.Request for the GetPolicy method
func NewGetPolicyRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/policy")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListPolicyFilesRequest constructs an http.Request for the ListPolicyFiles method
func NewListPolicyFilesRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/policy/files")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListSelectorsRequest constructs an http.Request for the ListSelectors method
func NewListSelectorsRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/policy/selectors")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListSubjectSelectorsRequest constructs an http.Request for the ListSubjectSelectors method
func NewListSubjectSelectorsRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/policy/subject-selectors")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewTracePolicyRequest constructs an http.Request for the TracePolicy method
func NewTracePolicyRequest(server string, params *TracePolicyParams) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/policy/trace")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	if params != nil {
		// queryValues collects non-styled parameters (passthrough, JSON)
		// that are safe to round-trip through url.Values.Encode().
		queryValues := queryURL.Query()
		// rawQueryFragments collects pre-encoded query fragments from
		// styled parameters, preserving literal commas as delimiters
		// per the OpenAPI spec (e.g. "color=blue,black,brown").
		var rawQueryFragments []string

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "from", params.From, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "to", params.To, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "dport", params.DPort, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if queryFrag, err := runtime.StyleParamWithOptions("form", true, "proto", params.Proto, runtime.StyleParamOptions{ParamLocation: runtime.ParamLocationQuery, Type: "string", Format: ""}); err != nil {
			return nil, err
		} else {
			for _, qp := range strings.Split(queryFrag, "&") {
				rawQueryFragments = append(rawQueryFragments, qp)
			}
		}

		if encoded := queryValues.Encode(); encoded != "" {
			rawQueryFragments = append(rawQueryFragments, encoded)
		}
		queryURL.RawQuery = strings.Join(rawQueryFragments, "&")
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewDeletePrefilterRequest constructs an http.Request for the DeletePrefilter method
func NewDeletePrefilterRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/prefilter")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodDelete, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewGetPrefilterRequest constructs an http.Request for the GetPrefilter method
func NewGetPrefilterRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/prefilter")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewPatchPrefilterRequest constructs an http.Request for the PatchPrefilter method
func NewPatchPrefilterRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/prefilter")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodPatch, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

// NewListServicesRequest constructs an http.Request for the ListServices method
func NewListServicesRequest(server string) (*http.Request, error) {
	var err error

	serverURL, err := url.Parse(server)
	if err != nil {
		return nil, err
	}

	operationPath := fmt.Sprintf("/service")
	if operationPath[0] == '/' {
		operationPath = "." + operationPath
	}

	queryURL, err := serverURL.Parse(operationPath)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequest(http.MethodGet, queryURL.String(), nil)
	if err != nil {
		return nil, err
	}

	return req, nil
}

func (c *Client) applyEditors(ctx context.Context, req *http.Request, additionalEditors []RequestEditorFn) error {
	for _, r := range c.RequestEditors {
		if err := r(ctx, req); err != nil {
			return err
		}
	}
	for _, r := range additionalEditors {
		if err := r(ctx, req); err != nil {
			return err
		}
	}
	return nil
}

// Package client reads the responses.
