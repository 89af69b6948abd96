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

	// GetDebugInfo What helps to find a fault; no secrets
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

	// ListIPsWithBody List who is behind which address
	//
	// Takes any type of body and a specified content type.
	//
	// Corresponds with GET /ip (the `ListIPs` operationId).
	ListIPsWithBody(ctx context.Context, params *ListIPsParams, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*http.Response, error)

	// ListIPs List who is behind which address
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

// GetDebugInfo What helps to find a fault; no secrets
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

// ListIPsWithBody List who is behind which address
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

// ListIPs List who is behind which address
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

// ClientWithResponses builds on ClientInterface to offer response payloads
type ClientWithResponses struct {
	ClientInterface
}

// NewClientWithResponses creates a new ClientWithResponses, which wraps
// Client with return type handling
func NewClientWithResponses(server string, opts ...ClientOption) (*ClientWithResponses, error) {
	client, err := NewClient(server, opts...)
	if err != nil {
		return nil, err
	}
	return &ClientWithResponses{client}, nil
}

// WithBaseURL overrides the baseURL.
func WithBaseURL(baseURL string) ClientOption {
	return func(c *Client) error {
		newBaseURL, err := url.Parse(baseURL)
		if err != nil {
			return err
		}
		c.Server = newBaseURL.String()
		return nil
	}
}

// ClientWithResponsesInterface is the interface specification for the client with responses above.
type ClientWithResponsesInterface interface {

	// ListBGPPeersWithResponse Peers of BGP, which is not supported
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /bgp/peers (the `ListBGPPeers` operationId).
	ListBGPPeersWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListBGPPeersResponse, error)

	// ListBGPRoutePoliciesWithResponse Policies of BGP, which is not supported
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /bgp/route-policies (the `ListBGPRoutePolicies` operationId).
	ListBGPRoutePoliciesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListBGPRoutePoliciesResponse, error)

	// ListBGPRoutesWithResponse Routes of BGP, which is not supported
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /bgp/routes (the `ListBGPRoutes` operationId).
	ListBGPRoutesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListBGPRoutesResponse, error)

	// GetCgroupMetadataWithResponse Cgroups of pods, which nothing here needs; the list is empty
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /cgroup-dump-metadata (the `GetCgroupMetadata` operationId).
	GetCgroupMetadataWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetCgroupMetadataResponse, error)

	// GetClusterHealthWithResponse Hawser: which nodes this one reaches, and since when it does not
	//
	// The same is GET /v1beta/status of the socket health.sock beside this one, for clients that ask there.
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /cluster/health (the `GetClusterHealth` operationId).
	GetClusterHealthWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetClusterHealthResponse, error)

	// GetClusterNodesWithResponse List the nodes, or what changed since this client asked last
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /cluster/nodes (the `GetClusterNodes` operationId).
	GetClusterNodesWithResponse(ctx context.Context, params *GetClusterNodesParams, reqEditors ...RequestEditorFn) (*GetClusterNodesResponse, error)

	// GetConfigWithResponse Configuration in force and facts a CNI plugin needs
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /config (the `GetConfig` operationId).
	GetConfigWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetConfigResponse, error)

	// PatchConfigWithBodyWithResponse Change options that can change at run time
	//
	// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PATCH /config (the `PatchConfig` operationId).
	PatchConfigWithBodyWithResponse(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*PatchConfigResponse, error)

	// PatchConfigWithResponse Change options that can change at run time
	//
	// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PATCH /config (the `PatchConfig` operationId).
	PatchConfigWithResponse(ctx context.Context, body PatchConfigJSONRequestBody, reqEditors ...RequestEditorFn) (*PatchConfigResponse, error)

	// GetDebugInfoWithResponse What helps to find a fault; no secrets
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /debuginfo (the `GetDebugInfo` operationId).
	GetDebugInfoWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetDebugInfoResponse, error)

	// DeleteEndpointsWithBodyWithResponse Delete all endpoints of a container
	//
	// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with DELETE /endpoint (the `DeleteEndpoints` operationId).
	DeleteEndpointsWithBodyWithResponse(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*DeleteEndpointsResponse, error)

	// DeleteEndpointsWithResponse Delete all endpoints of a container
	//
	// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with DELETE /endpoint (the `DeleteEndpoints` operationId).
	DeleteEndpointsWithResponse(ctx context.Context, body DeleteEndpointsJSONRequestBody, reqEditors ...RequestEditorFn) (*DeleteEndpointsResponse, error)

	// ListEndpointsWithBodyWithResponse List the endpoints of this node
	//
	// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /endpoint (the `ListEndpoints` operationId).
	ListEndpointsWithBodyWithResponse(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*ListEndpointsResponse, error)

	// ListEndpointsWithResponse List the endpoints of this node
	//
	// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /endpoint (the `ListEndpoints` operationId).
	ListEndpointsWithResponse(ctx context.Context, body ListEndpointsJSONRequestBody, reqEditors ...RequestEditorFn) (*ListEndpointsResponse, error)

	// DeleteEndpointWithResponse Delete an endpoint
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with DELETE /endpoint/{id} (the `DeleteEndpoint` operationId).
	DeleteEndpointWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*DeleteEndpointResponse, error)

	// GetEndpointWithResponse Get an endpoint
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /endpoint/{id} (the `GetEndpoint` operationId).
	GetEndpointWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointResponse, error)

	// PatchEndpointWithBodyWithResponse Change an endpoint
	//
	// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PATCH /endpoint/{id} (the `PatchEndpoint` operationId).
	PatchEndpointWithBodyWithResponse(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*PatchEndpointResponse, error)

	// PatchEndpointWithResponse Change an endpoint
	//
	// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PATCH /endpoint/{id} (the `PatchEndpoint` operationId).
	PatchEndpointWithResponse(ctx context.Context, id EndpointID, body PatchEndpointJSONRequestBody, reqEditors ...RequestEditorFn) (*PatchEndpointResponse, error)

	// CreateEndpointWithBodyWithResponse Create an endpoint
	//
	// It returns when the kernel enforces the endpoint's policy, so that sync-build-endpoint must not be
	// false. Where Kubernetes is the source of a pod's labels the request must have none.
	//
	// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PUT /endpoint/{id} (the `CreateEndpoint` operationId).
	CreateEndpointWithBodyWithResponse(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*CreateEndpointResponse, error)

	// CreateEndpointWithResponse Create an endpoint
	//
	// It returns when the kernel enforces the endpoint's policy, so that sync-build-endpoint must not be
	// false. Where Kubernetes is the source of a pod's labels the request must have none.
	//
	// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PUT /endpoint/{id} (the `CreateEndpoint` operationId).
	CreateEndpointWithResponse(ctx context.Context, id EndpointID, body CreateEndpointJSONRequestBody, reqEditors ...RequestEditorFn) (*CreateEndpointResponse, error)

	// GetEndpointConfigWithResponse Get an endpoint's options
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /endpoint/{id}/config (the `GetEndpointConfig` operationId).
	GetEndpointConfigWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointConfigResponse, error)

	// PatchEndpointConfigWithBodyWithResponse Change an endpoint's options
	//
	// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PATCH /endpoint/{id}/config (the `PatchEndpointConfig` operationId).
	PatchEndpointConfigWithBodyWithResponse(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*PatchEndpointConfigResponse, error)

	// PatchEndpointConfigWithResponse Change an endpoint's options
	//
	// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PATCH /endpoint/{id}/config (the `PatchEndpointConfig` operationId).
	PatchEndpointConfigWithResponse(ctx context.Context, id EndpointID, body PatchEndpointConfigJSONRequestBody, reqEditors ...RequestEditorFn) (*PatchEndpointConfigResponse, error)

	// GetEndpointHealthWithResponse Get an endpoint's health
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /endpoint/{id}/healthz (the `GetEndpointHealth` operationId).
	GetEndpointHealthWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointHealthResponse, error)

	// GetEndpointLabelsWithResponse Get an endpoint's labels
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /endpoint/{id}/labels (the `GetEndpointLabels` operationId).
	GetEndpointLabelsWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointLabelsResponse, error)

	// PatchEndpointLabelsWithBodyWithResponse Replace an endpoint's user labels
	//
	// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PATCH /endpoint/{id}/labels (the `PatchEndpointLabels` operationId).
	PatchEndpointLabelsWithBodyWithResponse(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*PatchEndpointLabelsResponse, error)

	// PatchEndpointLabelsWithResponse Replace an endpoint's user labels
	//
	// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PATCH /endpoint/{id}/labels (the `PatchEndpointLabels` operationId).
	PatchEndpointLabelsWithResponse(ctx context.Context, id EndpointID, body PatchEndpointLabelsJSONRequestBody, reqEditors ...RequestEditorFn) (*PatchEndpointLabelsResponse, error)

	// GetEndpointLogWithResponse Get what happened to an endpoint, newest first; also to one of the last that are gone
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /endpoint/{id}/log (the `GetEndpointLog` operationId).
	GetEndpointLogWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointLogResponse, error)

	// DeleteFQDNsWithResponse Forget names that pods have looked up; there are none
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with DELETE /fqdn/cache (the `DeleteFQDNs` operationId).
	DeleteFQDNsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*DeleteFQDNsResponse, error)

	// ListFQDNsWithResponse Names that pods have looked up; there is no proxy that sees them
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /fqdn/cache (the `ListFQDNs` operationId).
	ListFQDNsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListFQDNsResponse, error)

	// ListEndpointFQDNsWithResponse Names that an endpoint has looked up; there is no proxy that sees them
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /fqdn/cache/{id} (the `ListEndpointFQDNs` operationId).
	ListEndpointFQDNsWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*ListEndpointFQDNsResponse, error)

	// GetFQDNNamesWithResponse Selectors of names, which policies here cannot have
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /fqdn/names (the `GetFQDNNames` operationId).
	GetFQDNNamesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetFQDNNamesResponse, error)

	// GetHealthzWithResponse Health of the agent and of its parts
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /healthz (the `GetHealthz` operationId).
	GetHealthzWithResponse(ctx context.Context, params *GetHealthzParams, reqEditors ...RequestEditorFn) (*GetHealthzResponse, error)

	// ListIdentitiesWithBodyWithResponse List the identities this node knows
	//
	// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /identity (the `ListIdentities` operationId).
	ListIdentitiesWithBodyWithResponse(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*ListIdentitiesResponse, error)

	// ListIdentitiesWithResponse List the identities this node knows
	//
	// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /identity (the `ListIdentities` operationId).
	ListIdentitiesWithResponse(ctx context.Context, body ListIdentitiesJSONRequestBody, reqEditors ...RequestEditorFn) (*ListIdentitiesResponse, error)

	// ListIdentityEndpointsWithResponse List the identities local endpoints use, with how many use each
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /identity/endpoints (the `ListIdentityEndpoints` operationId).
	ListIdentityEndpointsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListIdentityEndpointsResponse, error)

	// GetIdentityWithResponse Get an identity by its number
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /identity/{id} (the `GetIdentity` operationId).
	GetIdentityWithResponse(ctx context.Context, id string, reqEditors ...RequestEditorFn) (*GetIdentityResponse, error)

	// ListIPsWithBodyWithResponse List who is behind which address
	//
	// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /ip (the `ListIPs` operationId).
	ListIPsWithBodyWithResponse(ctx context.Context, params *ListIPsParams, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*ListIPsResponse, error)

	// ListIPsWithResponse List who is behind which address
	//
	// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /ip (the `ListIPs` operationId).
	ListIPsWithResponse(ctx context.Context, params *ListIPsParams, body ListIPsJSONRequestBody, reqEditors ...RequestEditorFn) (*ListIPsResponse, error)

	// AllocateIPWithResponse Allocate an address of each enabled family, or of one
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with POST /ipam (the `AllocateIP` operationId).
	AllocateIPWithResponse(ctx context.Context, params *AllocateIPParams, reqEditors ...RequestEditorFn) (*AllocateIPResponse, error)

	// ReleaseIPWithResponse Release one address
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with DELETE /ipam/{ip} (the `ReleaseIP` operationId).
	ReleaseIPWithResponse(ctx context.Context, ip string, params *ReleaseIPParams, reqEditors ...RequestEditorFn) (*ReleaseIPResponse, error)

	// ReserveIPWithResponse Reserve one address
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with POST /ipam/{ip} (the `ReserveIP` operationId).
	ReserveIPWithResponse(ctx context.Context, ip string, params *ReserveIPParams, reqEditors ...RequestEditorFn) (*ReserveIPResponse, error)

	// ListLRPsWithResponse Local redirect policies, which are not supported; the list is empty
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /lrp (the `ListLRPs` operationId).
	ListLRPsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListLRPsResponse, error)

	// ListMapsWithResponse List the kernel maps
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /map (the `ListMaps` operationId).
	ListMapsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListMapsResponse, error)

	// GetMapWithResponse Get the content of a kernel map
	//
	// Hawser's maps are endpoints, policy, ipcache, ct and metrics.
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /map/{name} (the `GetMap` operationId).
	GetMapWithResponse(ctx context.Context, name string, reqEditors ...RequestEditorFn) (*GetMapResponse, error)

	// ListMapEventsWithResponse Changes of a kernel map; none are kept
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /map/{name}/events (the `ListMapEvents` operationId).
	ListMapEventsWithResponse(ctx context.Context, name string, reqEditors ...RequestEditorFn) (*ListMapEventsResponse, error)

	// ListMetricsWithResponse The values of all metrics now
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /metrics (the `ListMetrics` operationId).
	ListMetricsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListMetricsResponse, error)

	// MonitorWithResponse Hawser: stream datapath events as JSON lines until the client closes
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /monitor (the `Monitor` operationId).
	MonitorWithResponse(ctx context.Context, params *MonitorParams, reqEditors ...RequestEditorFn) (*MonitorResponse, error)

	// ListNodeIDsWithResponse List the numbers this node gave to nodes
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /node/ids (the `ListNodeIDs` operationId).
	ListNodeIDsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListNodeIDsResponse, error)

	// GetPolicyWithResponse Get all rules in force
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /policy (the `GetPolicy` operationId).
	GetPolicyWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetPolicyResponse, error)

	// ListPolicyFilesWithResponse Hawser: list the files of the static policy directory and the policies of Kubernetes
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /policy/files (the `ListPolicyFiles` operationId).
	ListPolicyFilesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListPolicyFilesResponse, error)

	// ListSelectorsWithResponse List the peer selectors in use and the identities each selects
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /policy/selectors (the `ListSelectors` operationId).
	ListSelectorsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListSelectorsResponse, error)

	// ListSubjectSelectorsWithResponse List the subject selectors in use and the identities each selects
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /policy/subject-selectors (the `ListSubjectSelectors` operationId).
	ListSubjectSelectorsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListSubjectSelectorsResponse, error)

	// TracePolicyWithResponse Hawser: explain why one side would reach the other, rule by rule
	//
	// A side is an endpoint id as everywhere in this API (`12`, `cep-name:default/web`), an
	// address (`10.0.0.1`, `fd00::1`), `identity:<number>`, or
	// `labels:<source:key=value>[;<source:key=value>...]`.
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /policy/trace (the `TracePolicy` operationId).
	TracePolicyWithResponse(ctx context.Context, params *TracePolicyParams, reqEditors ...RequestEditorFn) (*TracePolicyResponse, error)

	// DeletePrefilterWithResponse Remove prefixes to filter; there is no such filter
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with DELETE /prefilter (the `DeletePrefilter` operationId).
	DeletePrefilterWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*DeletePrefilterResponse, error)

	// GetPrefilterWithResponse Prefixes that are filtered before all else; there is no such filter
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /prefilter (the `GetPrefilter` operationId).
	GetPrefilterWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetPrefilterResponse, error)

	// PatchPrefilterWithResponse Add prefixes to filter; there is no such filter
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with PATCH /prefilter (the `PatchPrefilter` operationId).
	PatchPrefilterWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*PatchPrefilterResponse, error)

	// ListServicesWithResponse List the frontends of services and where they lead
	//
	// Returns a wrapper object for the known response body format(s).
	//
	// Corresponds with GET /service (the `ListServices` operationId).
	ListServicesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListServicesResponse, error)
}

type ListBGPPeersResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON501 the response for an HTTP 501 `application/json` response
	JSON501 *ErrorMessage
}

// GetJSON501 returns the response for an HTTP 501 `application/json` response
func (r ListBGPPeersResponse) GetJSON501() *ErrorMessage {
	return r.JSON501
}

// GetBody returns the raw response body bytes
func (r ListBGPPeersResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListBGPPeersResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListBGPPeersResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListBGPPeersResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListBGPRoutePoliciesResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON501 the response for an HTTP 501 `application/json` response
	JSON501 *ErrorMessage
}

// GetJSON501 returns the response for an HTTP 501 `application/json` response
func (r ListBGPRoutePoliciesResponse) GetJSON501() *ErrorMessage {
	return r.JSON501
}

// GetBody returns the raw response body bytes
func (r ListBGPRoutePoliciesResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListBGPRoutePoliciesResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListBGPRoutePoliciesResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListBGPRoutePoliciesResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListBGPRoutesResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON501 the response for an HTTP 501 `application/json` response
	JSON501 *ErrorMessage
}

// GetJSON501 returns the response for an HTTP 501 `application/json` response
func (r ListBGPRoutesResponse) GetJSON501() *ErrorMessage {
	return r.JSON501
}

// GetBody returns the raw response body bytes
func (r ListBGPRoutesResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListBGPRoutesResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListBGPRoutesResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListBGPRoutesResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetCgroupMetadataResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *CgroupMetadata
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetCgroupMetadataResponse) GetJSON200() *CgroupMetadata {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r GetCgroupMetadataResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetCgroupMetadataResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetCgroupMetadataResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetCgroupMetadataResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetClusterHealthResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *HealthStatus
	// JSON501 the response for an HTTP 501 `application/json` response
	JSON501 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetClusterHealthResponse) GetJSON200() *HealthStatus {
	return r.JSON200
}

// GetJSON501 returns the response for an HTTP 501 `application/json` response
func (r GetClusterHealthResponse) GetJSON501() *ErrorMessage {
	return r.JSON501
}

// GetBody returns the raw response body bytes
func (r GetClusterHealthResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetClusterHealthResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetClusterHealthResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetClusterHealthResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetClusterNodesResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *ClusterNodeStatus
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetClusterNodesResponse) GetJSON200() *ClusterNodeStatus {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r GetClusterNodesResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetClusterNodesResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetClusterNodesResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetClusterNodesResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetConfigResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *DaemonConfiguration
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetConfigResponse) GetJSON200() *DaemonConfiguration {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r GetConfigResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetConfigResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetConfigResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetConfigResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type PatchConfigResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON403 the response for an HTTP 403 `application/json` response
	JSON403 *ErrorMessage
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r PatchConfigResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON403 returns the response for an HTTP 403 `application/json` response
func (r PatchConfigResponse) GetJSON403() *ErrorMessage {
	return r.JSON403
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r PatchConfigResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetBody returns the raw response body bytes
func (r PatchConfigResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r PatchConfigResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r PatchConfigResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r PatchConfigResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetDebugInfoResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *DebugInfo
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetDebugInfoResponse) GetJSON200() *DebugInfo {
	return r.JSON200
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r GetDebugInfoResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetBody returns the raw response body bytes
func (r GetDebugInfoResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetDebugInfoResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetDebugInfoResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetDebugInfoResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type DeleteEndpointsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON206 the response for an HTTP 206 `application/json` response
	JSON206 *ErrorCount
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
	// JSON503 the response for an HTTP 503 `application/json` response
	JSON503 *ErrorMessage
}

// GetJSON206 returns the response for an HTTP 206 `application/json` response
func (r DeleteEndpointsResponse) GetJSON206() *ErrorCount {
	return r.JSON206
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r DeleteEndpointsResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r DeleteEndpointsResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r DeleteEndpointsResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetJSON503 returns the response for an HTTP 503 `application/json` response
func (r DeleteEndpointsResponse) GetJSON503() *ErrorMessage {
	return r.JSON503
}

// GetBody returns the raw response body bytes
func (r DeleteEndpointsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r DeleteEndpointsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r DeleteEndpointsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r DeleteEndpointsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListEndpointsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]Endpoint
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListEndpointsResponse) GetJSON200() *[]Endpoint {
	return r.JSON200
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r ListEndpointsResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r ListEndpointsResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetBody returns the raw response body bytes
func (r ListEndpointsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListEndpointsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListEndpointsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListEndpointsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type DeleteEndpointResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON206 the response for an HTTP 206 `application/json` response
	JSON206 *ErrorCount
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON403 the response for an HTTP 403 `application/json` response
	JSON403 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
	// JSON503 the response for an HTTP 503 `application/json` response
	JSON503 *ErrorMessage
}

// GetJSON206 returns the response for an HTTP 206 `application/json` response
func (r DeleteEndpointResponse) GetJSON206() *ErrorCount {
	return r.JSON206
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r DeleteEndpointResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON403 returns the response for an HTTP 403 `application/json` response
func (r DeleteEndpointResponse) GetJSON403() *ErrorMessage {
	return r.JSON403
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r DeleteEndpointResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r DeleteEndpointResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetJSON503 returns the response for an HTTP 503 `application/json` response
func (r DeleteEndpointResponse) GetJSON503() *ErrorMessage {
	return r.JSON503
}

// GetBody returns the raw response body bytes
func (r DeleteEndpointResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r DeleteEndpointResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r DeleteEndpointResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r DeleteEndpointResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetEndpointResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *Endpoint
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetEndpointResponse) GetJSON200() *Endpoint {
	return r.JSON200
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r GetEndpointResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r GetEndpointResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r GetEndpointResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetBody returns the raw response body bytes
func (r GetEndpointResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetEndpointResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetEndpointResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetEndpointResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type PatchEndpointResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *Endpoint
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON403 the response for an HTTP 403 `application/json` response
	JSON403 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
	// JSON503 the response for an HTTP 503 `application/json` response
	JSON503 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r PatchEndpointResponse) GetJSON200() *Endpoint {
	return r.JSON200
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r PatchEndpointResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON403 returns the response for an HTTP 403 `application/json` response
func (r PatchEndpointResponse) GetJSON403() *ErrorMessage {
	return r.JSON403
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r PatchEndpointResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r PatchEndpointResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r PatchEndpointResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetJSON503 returns the response for an HTTP 503 `application/json` response
func (r PatchEndpointResponse) GetJSON503() *ErrorMessage {
	return r.JSON503
}

// GetBody returns the raw response body bytes
func (r PatchEndpointResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r PatchEndpointResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r PatchEndpointResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r PatchEndpointResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type CreateEndpointResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON201 the response for an HTTP 201 `application/json` response
	JSON201 *Endpoint
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON403 the response for an HTTP 403 `application/json` response
	JSON403 *ErrorMessage
	// JSON409 the response for an HTTP 409 `application/json` response
	JSON409 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
	// JSON503 the response for an HTTP 503 `application/json` response
	JSON503 *ErrorMessage
}

// GetJSON201 returns the response for an HTTP 201 `application/json` response
func (r CreateEndpointResponse) GetJSON201() *Endpoint {
	return r.JSON201
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r CreateEndpointResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON403 returns the response for an HTTP 403 `application/json` response
func (r CreateEndpointResponse) GetJSON403() *ErrorMessage {
	return r.JSON403
}

// GetJSON409 returns the response for an HTTP 409 `application/json` response
func (r CreateEndpointResponse) GetJSON409() *ErrorMessage {
	return r.JSON409
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r CreateEndpointResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r CreateEndpointResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetJSON503 returns the response for an HTTP 503 `application/json` response
func (r CreateEndpointResponse) GetJSON503() *ErrorMessage {
	return r.JSON503
}

// GetBody returns the raw response body bytes
func (r CreateEndpointResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r CreateEndpointResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r CreateEndpointResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r CreateEndpointResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetEndpointConfigResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *EndpointConfigurationStatus
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetEndpointConfigResponse) GetJSON200() *EndpointConfigurationStatus {
	return r.JSON200
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r GetEndpointConfigResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r GetEndpointConfigResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r GetEndpointConfigResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetBody returns the raw response body bytes
func (r GetEndpointConfigResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetEndpointConfigResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetEndpointConfigResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetEndpointConfigResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type PatchEndpointConfigResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON403 the response for an HTTP 403 `application/json` response
	JSON403 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
	// JSON503 the response for an HTTP 503 `application/json` response
	JSON503 *ErrorMessage
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r PatchEndpointConfigResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON403 returns the response for an HTTP 403 `application/json` response
func (r PatchEndpointConfigResponse) GetJSON403() *ErrorMessage {
	return r.JSON403
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r PatchEndpointConfigResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r PatchEndpointConfigResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r PatchEndpointConfigResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetJSON503 returns the response for an HTTP 503 `application/json` response
func (r PatchEndpointConfigResponse) GetJSON503() *ErrorMessage {
	return r.JSON503
}

// GetBody returns the raw response body bytes
func (r PatchEndpointConfigResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r PatchEndpointConfigResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r PatchEndpointConfigResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r PatchEndpointConfigResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetEndpointHealthResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *EndpointHealth
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetEndpointHealthResponse) GetJSON200() *EndpointHealth {
	return r.JSON200
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r GetEndpointHealthResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r GetEndpointHealthResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r GetEndpointHealthResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetBody returns the raw response body bytes
func (r GetEndpointHealthResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetEndpointHealthResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetEndpointHealthResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetEndpointHealthResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetEndpointLabelsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *LabelConfiguration
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetEndpointLabelsResponse) GetJSON200() *LabelConfiguration {
	return r.JSON200
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r GetEndpointLabelsResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r GetEndpointLabelsResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r GetEndpointLabelsResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetBody returns the raw response body bytes
func (r GetEndpointLabelsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetEndpointLabelsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetEndpointLabelsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetEndpointLabelsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type PatchEndpointLabelsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON403 the response for an HTTP 403 `application/json` response
	JSON403 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
	// JSON503 the response for an HTTP 503 `application/json` response
	JSON503 *ErrorMessage
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r PatchEndpointLabelsResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON403 returns the response for an HTTP 403 `application/json` response
func (r PatchEndpointLabelsResponse) GetJSON403() *ErrorMessage {
	return r.JSON403
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r PatchEndpointLabelsResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r PatchEndpointLabelsResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r PatchEndpointLabelsResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetJSON503 returns the response for an HTTP 503 `application/json` response
func (r PatchEndpointLabelsResponse) GetJSON503() *ErrorMessage {
	return r.JSON503
}

// GetBody returns the raw response body bytes
func (r PatchEndpointLabelsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r PatchEndpointLabelsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r PatchEndpointLabelsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r PatchEndpointLabelsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetEndpointLogResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]EndpointStatusChange
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON429 the response for an HTTP 429 `application/json` response
	JSON429 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetEndpointLogResponse) GetJSON200() *[]EndpointStatusChange {
	return r.JSON200
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r GetEndpointLogResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r GetEndpointLogResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON429 returns the response for an HTTP 429 `application/json` response
func (r GetEndpointLogResponse) GetJSON429() *ErrorMessage {
	return r.JSON429
}

// GetBody returns the raw response body bytes
func (r GetEndpointLogResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetEndpointLogResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetEndpointLogResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetEndpointLogResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type DeleteFQDNsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
}

// GetBody returns the raw response body bytes
func (r DeleteFQDNsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r DeleteFQDNsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r DeleteFQDNsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r DeleteFQDNsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListFQDNsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r ListFQDNsResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetBody returns the raw response body bytes
func (r ListFQDNsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListFQDNsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListFQDNsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListFQDNsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListEndpointFQDNsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r ListEndpointFQDNsResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetBody returns the raw response body bytes
func (r ListEndpointFQDNsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListEndpointFQDNsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListEndpointFQDNsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListEndpointFQDNsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetFQDNNamesResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *NameManager
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetFQDNNamesResponse) GetJSON200() *NameManager {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r GetFQDNNamesResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetFQDNNamesResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetFQDNNamesResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetFQDNNamesResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetHealthzResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *StatusResponse
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetHealthzResponse) GetJSON200() *StatusResponse {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r GetHealthzResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetHealthzResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetHealthzResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetHealthzResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListIdentitiesResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]Identity
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON520 the response for an HTTP 520 `application/json` response
	JSON520 *ErrorMessage
	// JSON521 the response for an HTTP 521 `application/json` response
	JSON521 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListIdentitiesResponse) GetJSON200() *[]Identity {
	return r.JSON200
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r ListIdentitiesResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON520 returns the response for an HTTP 520 `application/json` response
func (r ListIdentitiesResponse) GetJSON520() *ErrorMessage {
	return r.JSON520
}

// GetJSON521 returns the response for an HTTP 521 `application/json` response
func (r ListIdentitiesResponse) GetJSON521() *ErrorMessage {
	return r.JSON521
}

// GetBody returns the raw response body bytes
func (r ListIdentitiesResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListIdentitiesResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListIdentitiesResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListIdentitiesResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListIdentityEndpointsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]IdentityEndpoints
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListIdentityEndpointsResponse) GetJSON200() *[]IdentityEndpoints {
	return r.JSON200
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r ListIdentityEndpointsResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetBody returns the raw response body bytes
func (r ListIdentityEndpointsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListIdentityEndpointsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListIdentityEndpointsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListIdentityEndpointsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetIdentityResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *Identity
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON520 the response for an HTTP 520 `application/json` response
	JSON520 *ErrorMessage
	// JSON521 the response for an HTTP 521 `application/json` response
	JSON521 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetIdentityResponse) GetJSON200() *Identity {
	return r.JSON200
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r GetIdentityResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r GetIdentityResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON520 returns the response for an HTTP 520 `application/json` response
func (r GetIdentityResponse) GetJSON520() *ErrorMessage {
	return r.JSON520
}

// GetJSON521 returns the response for an HTTP 521 `application/json` response
func (r GetIdentityResponse) GetJSON521() *ErrorMessage {
	return r.JSON521
}

// GetBody returns the raw response body bytes
func (r GetIdentityResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetIdentityResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetIdentityResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetIdentityResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListIPsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]IPListEntry
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListIPsResponse) GetJSON200() *[]IPListEntry {
	return r.JSON200
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r ListIPsResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r ListIPsResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetBody returns the raw response body bytes
func (r ListIPsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListIPsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListIPsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListIPsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type AllocateIPResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON201 the response for an HTTP 201 `application/json` response
	JSON201 *IPAMResponse
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON403 the response for an HTTP 403 `application/json` response
	JSON403 *ErrorMessage
	// JSON502 the response for an HTTP 502 `application/json` response
	JSON502 *ErrorMessage
}

// GetJSON201 returns the response for an HTTP 201 `application/json` response
func (r AllocateIPResponse) GetJSON201() *IPAMResponse {
	return r.JSON201
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r AllocateIPResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON403 returns the response for an HTTP 403 `application/json` response
func (r AllocateIPResponse) GetJSON403() *ErrorMessage {
	return r.JSON403
}

// GetJSON502 returns the response for an HTTP 502 `application/json` response
func (r AllocateIPResponse) GetJSON502() *ErrorMessage {
	return r.JSON502
}

// GetBody returns the raw response body bytes
func (r AllocateIPResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r AllocateIPResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r AllocateIPResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r AllocateIPResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ReleaseIPResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON403 the response for an HTTP 403 `application/json` response
	JSON403 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
	// JSON501 the response for an HTTP 501 `application/json` response
	JSON501 *ErrorMessage
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r ReleaseIPResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON403 returns the response for an HTTP 403 `application/json` response
func (r ReleaseIPResponse) GetJSON403() *ErrorMessage {
	return r.JSON403
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r ReleaseIPResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r ReleaseIPResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetJSON501 returns the response for an HTTP 501 `application/json` response
func (r ReleaseIPResponse) GetJSON501() *ErrorMessage {
	return r.JSON501
}

// GetBody returns the raw response body bytes
func (r ReleaseIPResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ReleaseIPResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ReleaseIPResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ReleaseIPResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ReserveIPResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON403 the response for an HTTP 403 `application/json` response
	JSON403 *ErrorMessage
	// JSON409 the response for an HTTP 409 `application/json` response
	JSON409 *ErrorMessage
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
	// JSON501 the response for an HTTP 501 `application/json` response
	JSON501 *ErrorMessage
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r ReserveIPResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON403 returns the response for an HTTP 403 `application/json` response
func (r ReserveIPResponse) GetJSON403() *ErrorMessage {
	return r.JSON403
}

// GetJSON409 returns the response for an HTTP 409 `application/json` response
func (r ReserveIPResponse) GetJSON409() *ErrorMessage {
	return r.JSON409
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r ReserveIPResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetJSON501 returns the response for an HTTP 501 `application/json` response
func (r ReserveIPResponse) GetJSON501() *ErrorMessage {
	return r.JSON501
}

// GetBody returns the raw response body bytes
func (r ReserveIPResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ReserveIPResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ReserveIPResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ReserveIPResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListLRPsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]map[string]interface{}
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListLRPsResponse) GetJSON200() *[]map[string]interface{} {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r ListLRPsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListLRPsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListLRPsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListLRPsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListMapsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *BPFMapList
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListMapsResponse) GetJSON200() *BPFMapList {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r ListMapsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListMapsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListMapsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListMapsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetMapResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *BPFMap
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetMapResponse) GetJSON200() *BPFMap {
	return r.JSON200
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r GetMapResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetBody returns the raw response body bytes
func (r GetMapResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetMapResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetMapResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetMapResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListMapEventsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r ListMapEventsResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetBody returns the raw response body bytes
func (r ListMapEventsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListMapEventsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListMapEventsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListMapEventsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListMetricsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]Metric
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListMetricsResponse) GetJSON200() *[]Metric {
	return r.JSON200
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r ListMetricsResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetBody returns the raw response body bytes
func (r ListMetricsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListMetricsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListMetricsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListMetricsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type MonitorResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r MonitorResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetBody returns the raw response body bytes
func (r MonitorResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r MonitorResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r MonitorResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r MonitorResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListNodeIDsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]NodeID
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListNodeIDsResponse) GetJSON200() *[]NodeID {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r ListNodeIDsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListNodeIDsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListNodeIDsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListNodeIDsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetPolicyResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *Policy
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r GetPolicyResponse) GetJSON200() *Policy {
	return r.JSON200
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r GetPolicyResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetBody returns the raw response body bytes
func (r GetPolicyResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetPolicyResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetPolicyResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetPolicyResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListPolicyFilesResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]PolicyFile
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListPolicyFilesResponse) GetJSON200() *[]PolicyFile {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r ListPolicyFilesResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListPolicyFilesResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListPolicyFilesResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListPolicyFilesResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListSelectorsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]SelectorIdentityMapping
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListSelectorsResponse) GetJSON200() *[]SelectorIdentityMapping {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r ListSelectorsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListSelectorsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListSelectorsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListSelectorsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListSubjectSelectorsResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]SelectorIdentityMapping
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListSubjectSelectorsResponse) GetJSON200() *[]SelectorIdentityMapping {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r ListSubjectSelectorsResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListSubjectSelectorsResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListSubjectSelectorsResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListSubjectSelectorsResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type TracePolicyResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *PolicyTrace
	// JSON400 the response for an HTTP 400 `application/json` response
	JSON400 *ErrorMessage
	// JSON404 the response for an HTTP 404 `application/json` response
	JSON404 *ErrorMessage
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r TracePolicyResponse) GetJSON200() *PolicyTrace {
	return r.JSON200
}

// GetJSON400 returns the response for an HTTP 400 `application/json` response
func (r TracePolicyResponse) GetJSON400() *ErrorMessage {
	return r.JSON400
}

// GetJSON404 returns the response for an HTTP 404 `application/json` response
func (r TracePolicyResponse) GetJSON404() *ErrorMessage {
	return r.JSON404
}

// GetBody returns the raw response body bytes
func (r TracePolicyResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r TracePolicyResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r TracePolicyResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r TracePolicyResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type DeletePrefilterResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r DeletePrefilterResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetBody returns the raw response body bytes
func (r DeletePrefilterResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r DeletePrefilterResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r DeletePrefilterResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r DeletePrefilterResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type GetPrefilterResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r GetPrefilterResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetBody returns the raw response body bytes
func (r GetPrefilterResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r GetPrefilterResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r GetPrefilterResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r GetPrefilterResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type PatchPrefilterResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON500 the response for an HTTP 500 `application/json` response
	JSON500 *ErrorMessage
}

// GetJSON500 returns the response for an HTTP 500 `application/json` response
func (r PatchPrefilterResponse) GetJSON500() *ErrorMessage {
	return r.JSON500
}

// GetBody returns the raw response body bytes
func (r PatchPrefilterResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r PatchPrefilterResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r PatchPrefilterResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r PatchPrefilterResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

type ListServicesResponse struct {
	Body         []byte
	HTTPResponse *http.Response
	// JSON200 the response for an HTTP 200 `application/json` response
	JSON200 *[]Service
}

// GetJSON200 returns the response for an HTTP 200 `application/json` response
func (r ListServicesResponse) GetJSON200() *[]Service {
	return r.JSON200
}

// GetBody returns the raw response body bytes
func (r ListServicesResponse) GetBody() []byte {
	return r.Body
}

// Status returns HTTPResponse.Status
func (r ListServicesResponse) Status() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Status
	}
	return http.StatusText(0)
}

// StatusCode returns HTTPResponse.StatusCode
func (r ListServicesResponse) StatusCode() int {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.StatusCode
	}
	return 0
}

// ContentType is a convenience method to retrieve the Content-Type value from the HTTP response headers
func (r ListServicesResponse) ContentType() string {
	if r.HTTPResponse != nil {
		return r.HTTPResponse.Header.Get("Content-Type")
	}
	return ""
}

// ListBGPPeersWithResponse Peers of BGP, which is not supported
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /bgp/peers (the `ListBGPPeers` operationId).
func (c *ClientWithResponses) ListBGPPeersWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListBGPPeersResponse, error) {
	rsp, err := c.ListBGPPeers(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListBGPPeersResponse(rsp)
}

// ListBGPRoutePoliciesWithResponse Policies of BGP, which is not supported
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /bgp/route-policies (the `ListBGPRoutePolicies` operationId).
func (c *ClientWithResponses) ListBGPRoutePoliciesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListBGPRoutePoliciesResponse, error) {
	rsp, err := c.ListBGPRoutePolicies(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListBGPRoutePoliciesResponse(rsp)
}

// ListBGPRoutesWithResponse Routes of BGP, which is not supported
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /bgp/routes (the `ListBGPRoutes` operationId).
func (c *ClientWithResponses) ListBGPRoutesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListBGPRoutesResponse, error) {
	rsp, err := c.ListBGPRoutes(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListBGPRoutesResponse(rsp)
}

// GetCgroupMetadataWithResponse Cgroups of pods, which nothing here needs; the list is empty
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /cgroup-dump-metadata (the `GetCgroupMetadata` operationId).
func (c *ClientWithResponses) GetCgroupMetadataWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetCgroupMetadataResponse, error) {
	rsp, err := c.GetCgroupMetadata(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetCgroupMetadataResponse(rsp)
}

// GetClusterHealthWithResponse Hawser: which nodes this one reaches, and since when it does not
//
// The same is GET /v1beta/status of the socket health.sock beside this one, for clients that ask there.
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /cluster/health (the `GetClusterHealth` operationId).
func (c *ClientWithResponses) GetClusterHealthWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetClusterHealthResponse, error) {
	rsp, err := c.GetClusterHealth(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetClusterHealthResponse(rsp)
}

// GetClusterNodesWithResponse List the nodes, or what changed since this client asked last
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /cluster/nodes (the `GetClusterNodes` operationId).
func (c *ClientWithResponses) GetClusterNodesWithResponse(ctx context.Context, params *GetClusterNodesParams, reqEditors ...RequestEditorFn) (*GetClusterNodesResponse, error) {
	rsp, err := c.GetClusterNodes(ctx, params, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetClusterNodesResponse(rsp)
}

// GetConfigWithResponse Configuration in force and facts a CNI plugin needs
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /config (the `GetConfig` operationId).
func (c *ClientWithResponses) GetConfigWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetConfigResponse, error) {
	rsp, err := c.GetConfig(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetConfigResponse(rsp)
}

// PatchConfigWithBodyWithResponse Change options that can change at run time
//
// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PATCH /config (the `PatchConfig` operationId).
func (c *ClientWithResponses) PatchConfigWithBodyWithResponse(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*PatchConfigResponse, error) {
	rsp, err := c.PatchConfigWithBody(ctx, contentType, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParsePatchConfigResponse(rsp)
}

// PatchConfigWithResponse Change options that can change at run time
//
// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PATCH /config (the `PatchConfig` operationId).
func (c *ClientWithResponses) PatchConfigWithResponse(ctx context.Context, body PatchConfigJSONRequestBody, reqEditors ...RequestEditorFn) (*PatchConfigResponse, error) {
	rsp, err := c.PatchConfig(ctx, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParsePatchConfigResponse(rsp)
}

// GetDebugInfoWithResponse What helps to find a fault; no secrets
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /debuginfo (the `GetDebugInfo` operationId).
func (c *ClientWithResponses) GetDebugInfoWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetDebugInfoResponse, error) {
	rsp, err := c.GetDebugInfo(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetDebugInfoResponse(rsp)
}

// DeleteEndpointsWithBodyWithResponse Delete all endpoints of a container
//
// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with DELETE /endpoint (the `DeleteEndpoints` operationId).
func (c *ClientWithResponses) DeleteEndpointsWithBodyWithResponse(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*DeleteEndpointsResponse, error) {
	rsp, err := c.DeleteEndpointsWithBody(ctx, contentType, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseDeleteEndpointsResponse(rsp)
}

// DeleteEndpointsWithResponse Delete all endpoints of a container
//
// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with DELETE /endpoint (the `DeleteEndpoints` operationId).
func (c *ClientWithResponses) DeleteEndpointsWithResponse(ctx context.Context, body DeleteEndpointsJSONRequestBody, reqEditors ...RequestEditorFn) (*DeleteEndpointsResponse, error) {
	rsp, err := c.DeleteEndpoints(ctx, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseDeleteEndpointsResponse(rsp)
}

// ListEndpointsWithBodyWithResponse List the endpoints of this node
//
// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /endpoint (the `ListEndpoints` operationId).
func (c *ClientWithResponses) ListEndpointsWithBodyWithResponse(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*ListEndpointsResponse, error) {
	rsp, err := c.ListEndpointsWithBody(ctx, contentType, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListEndpointsResponse(rsp)
}

// ListEndpointsWithResponse List the endpoints of this node
//
// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /endpoint (the `ListEndpoints` operationId).
func (c *ClientWithResponses) ListEndpointsWithResponse(ctx context.Context, body ListEndpointsJSONRequestBody, reqEditors ...RequestEditorFn) (*ListEndpointsResponse, error) {
	rsp, err := c.ListEndpoints(ctx, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListEndpointsResponse(rsp)
}

// DeleteEndpointWithResponse Delete an endpoint
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with DELETE /endpoint/{id} (the `DeleteEndpoint` operationId).
func (c *ClientWithResponses) DeleteEndpointWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*DeleteEndpointResponse, error) {
	rsp, err := c.DeleteEndpoint(ctx, id, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseDeleteEndpointResponse(rsp)
}

// GetEndpointWithResponse Get an endpoint
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /endpoint/{id} (the `GetEndpoint` operationId).
func (c *ClientWithResponses) GetEndpointWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointResponse, error) {
	rsp, err := c.GetEndpoint(ctx, id, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetEndpointResponse(rsp)
}

// PatchEndpointWithBodyWithResponse Change an endpoint
//
// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PATCH /endpoint/{id} (the `PatchEndpoint` operationId).
func (c *ClientWithResponses) PatchEndpointWithBodyWithResponse(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*PatchEndpointResponse, error) {
	rsp, err := c.PatchEndpointWithBody(ctx, id, contentType, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParsePatchEndpointResponse(rsp)
}

// PatchEndpointWithResponse Change an endpoint
//
// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PATCH /endpoint/{id} (the `PatchEndpoint` operationId).
func (c *ClientWithResponses) PatchEndpointWithResponse(ctx context.Context, id EndpointID, body PatchEndpointJSONRequestBody, reqEditors ...RequestEditorFn) (*PatchEndpointResponse, error) {
	rsp, err := c.PatchEndpoint(ctx, id, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParsePatchEndpointResponse(rsp)
}

// CreateEndpointWithBodyWithResponse Create an endpoint
//
// It returns when the kernel enforces the endpoint's policy, so that sync-build-endpoint must not be
// false. Where Kubernetes is the source of a pod's labels the request must have none.
//
// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PUT /endpoint/{id} (the `CreateEndpoint` operationId).
func (c *ClientWithResponses) CreateEndpointWithBodyWithResponse(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*CreateEndpointResponse, error) {
	rsp, err := c.CreateEndpointWithBody(ctx, id, contentType, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseCreateEndpointResponse(rsp)
}

// CreateEndpointWithResponse Create an endpoint
//
// It returns when the kernel enforces the endpoint's policy, so that sync-build-endpoint must not be
// false. Where Kubernetes is the source of a pod's labels the request must have none.
//
// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PUT /endpoint/{id} (the `CreateEndpoint` operationId).
func (c *ClientWithResponses) CreateEndpointWithResponse(ctx context.Context, id EndpointID, body CreateEndpointJSONRequestBody, reqEditors ...RequestEditorFn) (*CreateEndpointResponse, error) {
	rsp, err := c.CreateEndpoint(ctx, id, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseCreateEndpointResponse(rsp)
}

// GetEndpointConfigWithResponse Get an endpoint's options
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /endpoint/{id}/config (the `GetEndpointConfig` operationId).
func (c *ClientWithResponses) GetEndpointConfigWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointConfigResponse, error) {
	rsp, err := c.GetEndpointConfig(ctx, id, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetEndpointConfigResponse(rsp)
}

// PatchEndpointConfigWithBodyWithResponse Change an endpoint's options
//
// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PATCH /endpoint/{id}/config (the `PatchEndpointConfig` operationId).
func (c *ClientWithResponses) PatchEndpointConfigWithBodyWithResponse(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*PatchEndpointConfigResponse, error) {
	rsp, err := c.PatchEndpointConfigWithBody(ctx, id, contentType, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParsePatchEndpointConfigResponse(rsp)
}

// PatchEndpointConfigWithResponse Change an endpoint's options
//
// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PATCH /endpoint/{id}/config (the `PatchEndpointConfig` operationId).
func (c *ClientWithResponses) PatchEndpointConfigWithResponse(ctx context.Context, id EndpointID, body PatchEndpointConfigJSONRequestBody, reqEditors ...RequestEditorFn) (*PatchEndpointConfigResponse, error) {
	rsp, err := c.PatchEndpointConfig(ctx, id, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParsePatchEndpointConfigResponse(rsp)
}

// GetEndpointHealthWithResponse Get an endpoint's health
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /endpoint/{id}/healthz (the `GetEndpointHealth` operationId).
func (c *ClientWithResponses) GetEndpointHealthWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointHealthResponse, error) {
	rsp, err := c.GetEndpointHealth(ctx, id, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetEndpointHealthResponse(rsp)
}

// GetEndpointLabelsWithResponse Get an endpoint's labels
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /endpoint/{id}/labels (the `GetEndpointLabels` operationId).
func (c *ClientWithResponses) GetEndpointLabelsWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointLabelsResponse, error) {
	rsp, err := c.GetEndpointLabels(ctx, id, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetEndpointLabelsResponse(rsp)
}

// PatchEndpointLabelsWithBodyWithResponse Replace an endpoint's user labels
//
// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PATCH /endpoint/{id}/labels (the `PatchEndpointLabels` operationId).
func (c *ClientWithResponses) PatchEndpointLabelsWithBodyWithResponse(ctx context.Context, id EndpointID, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*PatchEndpointLabelsResponse, error) {
	rsp, err := c.PatchEndpointLabelsWithBody(ctx, id, contentType, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParsePatchEndpointLabelsResponse(rsp)
}

// PatchEndpointLabelsWithResponse Replace an endpoint's user labels
//
// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with PATCH /endpoint/{id}/labels (the `PatchEndpointLabels` operationId).
func (c *ClientWithResponses) PatchEndpointLabelsWithResponse(ctx context.Context, id EndpointID, body PatchEndpointLabelsJSONRequestBody, reqEditors ...RequestEditorFn) (*PatchEndpointLabelsResponse, error) {
	rsp, err := c.PatchEndpointLabels(ctx, id, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParsePatchEndpointLabelsResponse(rsp)
}

// GetEndpointLogWithResponse Get what happened to an endpoint, newest first; also to one of the last that are gone
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /endpoint/{id}/log (the `GetEndpointLog` operationId).
func (c *ClientWithResponses) GetEndpointLogWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*GetEndpointLogResponse, error) {
	rsp, err := c.GetEndpointLog(ctx, id, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetEndpointLogResponse(rsp)
}

// DeleteFQDNsWithResponse Forget names that pods have looked up; there are none
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with DELETE /fqdn/cache (the `DeleteFQDNs` operationId).
func (c *ClientWithResponses) DeleteFQDNsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*DeleteFQDNsResponse, error) {
	rsp, err := c.DeleteFQDNs(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseDeleteFQDNsResponse(rsp)
}

// ListFQDNsWithResponse Names that pods have looked up; there is no proxy that sees them
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /fqdn/cache (the `ListFQDNs` operationId).
func (c *ClientWithResponses) ListFQDNsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListFQDNsResponse, error) {
	rsp, err := c.ListFQDNs(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListFQDNsResponse(rsp)
}

// ListEndpointFQDNsWithResponse Names that an endpoint has looked up; there is no proxy that sees them
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /fqdn/cache/{id} (the `ListEndpointFQDNs` operationId).
func (c *ClientWithResponses) ListEndpointFQDNsWithResponse(ctx context.Context, id EndpointID, reqEditors ...RequestEditorFn) (*ListEndpointFQDNsResponse, error) {
	rsp, err := c.ListEndpointFQDNs(ctx, id, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListEndpointFQDNsResponse(rsp)
}

// GetFQDNNamesWithResponse Selectors of names, which policies here cannot have
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /fqdn/names (the `GetFQDNNames` operationId).
func (c *ClientWithResponses) GetFQDNNamesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetFQDNNamesResponse, error) {
	rsp, err := c.GetFQDNNames(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetFQDNNamesResponse(rsp)
}

// GetHealthzWithResponse Health of the agent and of its parts
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /healthz (the `GetHealthz` operationId).
func (c *ClientWithResponses) GetHealthzWithResponse(ctx context.Context, params *GetHealthzParams, reqEditors ...RequestEditorFn) (*GetHealthzResponse, error) {
	rsp, err := c.GetHealthz(ctx, params, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetHealthzResponse(rsp)
}

// ListIdentitiesWithBodyWithResponse List the identities this node knows
//
// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /identity (the `ListIdentities` operationId).
func (c *ClientWithResponses) ListIdentitiesWithBodyWithResponse(ctx context.Context, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*ListIdentitiesResponse, error) {
	rsp, err := c.ListIdentitiesWithBody(ctx, contentType, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListIdentitiesResponse(rsp)
}

// ListIdentitiesWithResponse List the identities this node knows
//
// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /identity (the `ListIdentities` operationId).
func (c *ClientWithResponses) ListIdentitiesWithResponse(ctx context.Context, body ListIdentitiesJSONRequestBody, reqEditors ...RequestEditorFn) (*ListIdentitiesResponse, error) {
	rsp, err := c.ListIdentities(ctx, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListIdentitiesResponse(rsp)
}

// ListIdentityEndpointsWithResponse List the identities local endpoints use, with how many use each
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /identity/endpoints (the `ListIdentityEndpoints` operationId).
func (c *ClientWithResponses) ListIdentityEndpointsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListIdentityEndpointsResponse, error) {
	rsp, err := c.ListIdentityEndpoints(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListIdentityEndpointsResponse(rsp)
}

// GetIdentityWithResponse Get an identity by its number
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /identity/{id} (the `GetIdentity` operationId).
func (c *ClientWithResponses) GetIdentityWithResponse(ctx context.Context, id string, reqEditors ...RequestEditorFn) (*GetIdentityResponse, error) {
	rsp, err := c.GetIdentity(ctx, id, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetIdentityResponse(rsp)
}

// ListIPsWithBodyWithResponse List who is behind which address
//
// Takes any type of body and a specified content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /ip (the `ListIPs` operationId).
func (c *ClientWithResponses) ListIPsWithBodyWithResponse(ctx context.Context, params *ListIPsParams, contentType string, body io.Reader, reqEditors ...RequestEditorFn) (*ListIPsResponse, error) {
	rsp, err := c.ListIPsWithBody(ctx, params, contentType, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListIPsResponse(rsp)
}

// ListIPsWithResponse List who is behind which address
//
// Takes a body of the `application/json` content type, and returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /ip (the `ListIPs` operationId).
func (c *ClientWithResponses) ListIPsWithResponse(ctx context.Context, params *ListIPsParams, body ListIPsJSONRequestBody, reqEditors ...RequestEditorFn) (*ListIPsResponse, error) {
	rsp, err := c.ListIPs(ctx, params, body, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListIPsResponse(rsp)
}

// AllocateIPWithResponse Allocate an address of each enabled family, or of one
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with POST /ipam (the `AllocateIP` operationId).
func (c *ClientWithResponses) AllocateIPWithResponse(ctx context.Context, params *AllocateIPParams, reqEditors ...RequestEditorFn) (*AllocateIPResponse, error) {
	rsp, err := c.AllocateIP(ctx, params, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseAllocateIPResponse(rsp)
}

// ReleaseIPWithResponse Release one address
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with DELETE /ipam/{ip} (the `ReleaseIP` operationId).
func (c *ClientWithResponses) ReleaseIPWithResponse(ctx context.Context, ip string, params *ReleaseIPParams, reqEditors ...RequestEditorFn) (*ReleaseIPResponse, error) {
	rsp, err := c.ReleaseIP(ctx, ip, params, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseReleaseIPResponse(rsp)
}

// ReserveIPWithResponse Reserve one address
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with POST /ipam/{ip} (the `ReserveIP` operationId).
func (c *ClientWithResponses) ReserveIPWithResponse(ctx context.Context, ip string, params *ReserveIPParams, reqEditors ...RequestEditorFn) (*ReserveIPResponse, error) {
	rsp, err := c.ReserveIP(ctx, ip, params, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseReserveIPResponse(rsp)
}

// ListLRPsWithResponse Local redirect policies, which are not supported; the list is empty
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /lrp (the `ListLRPs` operationId).
func (c *ClientWithResponses) ListLRPsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListLRPsResponse, error) {
	rsp, err := c.ListLRPs(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListLRPsResponse(rsp)
}

// ListMapsWithResponse List the kernel maps
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /map (the `ListMaps` operationId).
func (c *ClientWithResponses) ListMapsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListMapsResponse, error) {
	rsp, err := c.ListMaps(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListMapsResponse(rsp)
}

// GetMapWithResponse Get the content of a kernel map
//
// Hawser's maps are endpoints, policy, ipcache, ct and metrics.
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /map/{name} (the `GetMap` operationId).
func (c *ClientWithResponses) GetMapWithResponse(ctx context.Context, name string, reqEditors ...RequestEditorFn) (*GetMapResponse, error) {
	rsp, err := c.GetMap(ctx, name, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetMapResponse(rsp)
}

// ListMapEventsWithResponse Changes of a kernel map; none are kept
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /map/{name}/events (the `ListMapEvents` operationId).
func (c *ClientWithResponses) ListMapEventsWithResponse(ctx context.Context, name string, reqEditors ...RequestEditorFn) (*ListMapEventsResponse, error) {
	rsp, err := c.ListMapEvents(ctx, name, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListMapEventsResponse(rsp)
}

// ListMetricsWithResponse The values of all metrics now
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /metrics (the `ListMetrics` operationId).
func (c *ClientWithResponses) ListMetricsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListMetricsResponse, error) {
	rsp, err := c.ListMetrics(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListMetricsResponse(rsp)
}

// MonitorWithResponse Hawser: stream datapath events as JSON lines until the client closes
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /monitor (the `Monitor` operationId).
func (c *ClientWithResponses) MonitorWithResponse(ctx context.Context, params *MonitorParams, reqEditors ...RequestEditorFn) (*MonitorResponse, error) {
	rsp, err := c.Monitor(ctx, params, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseMonitorResponse(rsp)
}

// ListNodeIDsWithResponse List the numbers this node gave to nodes
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /node/ids (the `ListNodeIDs` operationId).
func (c *ClientWithResponses) ListNodeIDsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListNodeIDsResponse, error) {
	rsp, err := c.ListNodeIDs(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListNodeIDsResponse(rsp)
}

// GetPolicyWithResponse Get all rules in force
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /policy (the `GetPolicy` operationId).
func (c *ClientWithResponses) GetPolicyWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetPolicyResponse, error) {
	rsp, err := c.GetPolicy(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetPolicyResponse(rsp)
}

// ListPolicyFilesWithResponse Hawser: list the files of the static policy directory and the policies of Kubernetes
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /policy/files (the `ListPolicyFiles` operationId).
func (c *ClientWithResponses) ListPolicyFilesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListPolicyFilesResponse, error) {
	rsp, err := c.ListPolicyFiles(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListPolicyFilesResponse(rsp)
}

// ListSelectorsWithResponse List the peer selectors in use and the identities each selects
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /policy/selectors (the `ListSelectors` operationId).
func (c *ClientWithResponses) ListSelectorsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListSelectorsResponse, error) {
	rsp, err := c.ListSelectors(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListSelectorsResponse(rsp)
}

// ListSubjectSelectorsWithResponse List the subject selectors in use and the identities each selects
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /policy/subject-selectors (the `ListSubjectSelectors` operationId).
func (c *ClientWithResponses) ListSubjectSelectorsWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListSubjectSelectorsResponse, error) {
	rsp, err := c.ListSubjectSelectors(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListSubjectSelectorsResponse(rsp)
}

// TracePolicyWithResponse Hawser: explain why one side would reach the other, rule by rule
//
// A side is an endpoint id as everywhere in this API (`12`, `cep-name:default/web`), an
// address (`10.0.0.1`, `fd00::1`), `identity:<number>`, or
// `labels:<source:key=value>[;<source:key=value>...]`.
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /policy/trace (the `TracePolicy` operationId).
func (c *ClientWithResponses) TracePolicyWithResponse(ctx context.Context, params *TracePolicyParams, reqEditors ...RequestEditorFn) (*TracePolicyResponse, error) {
	rsp, err := c.TracePolicy(ctx, params, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseTracePolicyResponse(rsp)
}

// DeletePrefilterWithResponse Remove prefixes to filter; there is no such filter
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with DELETE /prefilter (the `DeletePrefilter` operationId).
func (c *ClientWithResponses) DeletePrefilterWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*DeletePrefilterResponse, error) {
	rsp, err := c.DeletePrefilter(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseDeletePrefilterResponse(rsp)
}

// GetPrefilterWithResponse Prefixes that are filtered before all else; there is no such filter
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /prefilter (the `GetPrefilter` operationId).
func (c *ClientWithResponses) GetPrefilterWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*GetPrefilterResponse, error) {
	rsp, err := c.GetPrefilter(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseGetPrefilterResponse(rsp)
}

// PatchPrefilterWithResponse Add prefixes to filter; there is no such filter
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with PATCH /prefilter (the `PatchPrefilter` operationId).
func (c *ClientWithResponses) PatchPrefilterWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*PatchPrefilterResponse, error) {
	rsp, err := c.PatchPrefilter(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParsePatchPrefilterResponse(rsp)
}

// ListServicesWithResponse List the frontends of services and where they lead
//
// Returns a wrapper object for the known response body format(s).
//
// Corresponds with GET /service (the `ListServices` operationId).
func (c *ClientWithResponses) ListServicesWithResponse(ctx context.Context, reqEditors ...RequestEditorFn) (*ListServicesResponse, error) {
	rsp, err := c.ListServices(ctx, reqEditors...)
	if err != nil {
		return nil, err
	}
	return ParseListServicesResponse(rsp)
}

// ParseListBGPPeersResponse parses an HTTP response from a ListBGPPeersWithResponse call
func ParseListBGPPeersResponse(rsp *http.Response) (*ListBGPPeersResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListBGPPeersResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 501:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON501 = &dest

	}

	return response, nil
}

// ParseListBGPRoutePoliciesResponse parses an HTTP response from a ListBGPRoutePoliciesWithResponse call
func ParseListBGPRoutePoliciesResponse(rsp *http.Response) (*ListBGPRoutePoliciesResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListBGPRoutePoliciesResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 501:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON501 = &dest

	}

	return response, nil
}

// ParseListBGPRoutesResponse parses an HTTP response from a ListBGPRoutesWithResponse call
func ParseListBGPRoutesResponse(rsp *http.Response) (*ListBGPRoutesResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListBGPRoutesResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 501:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON501 = &dest

	}

	return response, nil
}

// ParseGetCgroupMetadataResponse parses an HTTP response from a GetCgroupMetadataWithResponse call
func ParseGetCgroupMetadataResponse(rsp *http.Response) (*GetCgroupMetadataResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetCgroupMetadataResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest CgroupMetadata
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseGetClusterHealthResponse parses an HTTP response from a GetClusterHealthWithResponse call
func ParseGetClusterHealthResponse(rsp *http.Response) (*GetClusterHealthResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetClusterHealthResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest HealthStatus
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 501:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON501 = &dest

	}

	return response, nil
}

// ParseGetClusterNodesResponse parses an HTTP response from a GetClusterNodesWithResponse call
func ParseGetClusterNodesResponse(rsp *http.Response) (*GetClusterNodesResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetClusterNodesResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest ClusterNodeStatus
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseGetConfigResponse parses an HTTP response from a GetConfigWithResponse call
func ParseGetConfigResponse(rsp *http.Response) (*GetConfigResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetConfigResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest DaemonConfiguration
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParsePatchConfigResponse parses an HTTP response from a PatchConfigWithResponse call
func ParsePatchConfigResponse(rsp *http.Response) (*PatchConfigResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &PatchConfigResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case rsp.StatusCode == 200:
		break // No content-type

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 403:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON403 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	}

	return response, nil
}

// ParseGetDebugInfoResponse parses an HTTP response from a GetDebugInfoWithResponse call
func ParseGetDebugInfoResponse(rsp *http.Response) (*GetDebugInfoResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetDebugInfoResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest DebugInfo
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	}

	return response, nil
}

// ParseDeleteEndpointsResponse parses an HTTP response from a DeleteEndpointsWithResponse call
func ParseDeleteEndpointsResponse(rsp *http.Response) (*DeleteEndpointsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &DeleteEndpointsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case rsp.StatusCode == 200:
		break // No content-type

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 206:
		var dest ErrorCount
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON206 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 503:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON503 = &dest

	}

	return response, nil
}

// ParseListEndpointsResponse parses an HTTP response from a ListEndpointsWithResponse call
func ParseListEndpointsResponse(rsp *http.Response) (*ListEndpointsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListEndpointsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []Endpoint
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	}

	return response, nil
}

// ParseDeleteEndpointResponse parses an HTTP response from a DeleteEndpointWithResponse call
func ParseDeleteEndpointResponse(rsp *http.Response) (*DeleteEndpointResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &DeleteEndpointResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case rsp.StatusCode == 200:
		break // No content-type

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 206:
		var dest ErrorCount
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON206 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 403:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON403 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 503:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON503 = &dest

	}

	return response, nil
}

// ParseGetEndpointResponse parses an HTTP response from a GetEndpointWithResponse call
func ParseGetEndpointResponse(rsp *http.Response) (*GetEndpointResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetEndpointResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest Endpoint
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	}

	return response, nil
}

// ParsePatchEndpointResponse parses an HTTP response from a PatchEndpointWithResponse call
func ParsePatchEndpointResponse(rsp *http.Response) (*PatchEndpointResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &PatchEndpointResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest Endpoint
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 403:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON403 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 503:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON503 = &dest

	}

	return response, nil
}

// ParseCreateEndpointResponse parses an HTTP response from a CreateEndpointWithResponse call
func ParseCreateEndpointResponse(rsp *http.Response) (*CreateEndpointResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &CreateEndpointResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 201:
		var dest Endpoint
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON201 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 403:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON403 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 409:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON409 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 503:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON503 = &dest

	}

	return response, nil
}

// ParseGetEndpointConfigResponse parses an HTTP response from a GetEndpointConfigWithResponse call
func ParseGetEndpointConfigResponse(rsp *http.Response) (*GetEndpointConfigResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetEndpointConfigResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest EndpointConfigurationStatus
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	}

	return response, nil
}

// ParsePatchEndpointConfigResponse parses an HTTP response from a PatchEndpointConfigWithResponse call
func ParsePatchEndpointConfigResponse(rsp *http.Response) (*PatchEndpointConfigResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &PatchEndpointConfigResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case rsp.StatusCode == 200:
		break // No content-type

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 403:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON403 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 503:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON503 = &dest

	}

	return response, nil
}

// ParseGetEndpointHealthResponse parses an HTTP response from a GetEndpointHealthWithResponse call
func ParseGetEndpointHealthResponse(rsp *http.Response) (*GetEndpointHealthResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetEndpointHealthResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest EndpointHealth
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	}

	return response, nil
}

// ParseGetEndpointLabelsResponse parses an HTTP response from a GetEndpointLabelsWithResponse call
func ParseGetEndpointLabelsResponse(rsp *http.Response) (*GetEndpointLabelsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetEndpointLabelsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest LabelConfiguration
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	}

	return response, nil
}

// ParsePatchEndpointLabelsResponse parses an HTTP response from a PatchEndpointLabelsWithResponse call
func ParsePatchEndpointLabelsResponse(rsp *http.Response) (*PatchEndpointLabelsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &PatchEndpointLabelsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case rsp.StatusCode == 200:
		break // No content-type

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 403:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON403 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 503:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON503 = &dest

	}

	return response, nil
}

// ParseGetEndpointLogResponse parses an HTTP response from a GetEndpointLogWithResponse call
func ParseGetEndpointLogResponse(rsp *http.Response) (*GetEndpointLogResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetEndpointLogResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []EndpointStatusChange
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 429:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON429 = &dest

	}

	return response, nil
}

// ParseDeleteFQDNsResponse parses an HTTP response from a DeleteFQDNsWithResponse call
func ParseDeleteFQDNsResponse(rsp *http.Response) (*DeleteFQDNsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &DeleteFQDNsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	return response, nil
}

// ParseListFQDNsResponse parses an HTTP response from a ListFQDNsWithResponse call
func ParseListFQDNsResponse(rsp *http.Response) (*ListFQDNsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListFQDNsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	}

	return response, nil
}

// ParseListEndpointFQDNsResponse parses an HTTP response from a ListEndpointFQDNsWithResponse call
func ParseListEndpointFQDNsResponse(rsp *http.Response) (*ListEndpointFQDNsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListEndpointFQDNsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	}

	return response, nil
}

// ParseGetFQDNNamesResponse parses an HTTP response from a GetFQDNNamesWithResponse call
func ParseGetFQDNNamesResponse(rsp *http.Response) (*GetFQDNNamesResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetFQDNNamesResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest NameManager
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseGetHealthzResponse parses an HTTP response from a GetHealthzWithResponse call
func ParseGetHealthzResponse(rsp *http.Response) (*GetHealthzResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetHealthzResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest StatusResponse
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseListIdentitiesResponse parses an HTTP response from a ListIdentitiesWithResponse call
func ParseListIdentitiesResponse(rsp *http.Response) (*ListIdentitiesResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListIdentitiesResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []Identity
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 520:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON520 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 521:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON521 = &dest

	}

	return response, nil
}

// ParseListIdentityEndpointsResponse parses an HTTP response from a ListIdentityEndpointsWithResponse call
func ParseListIdentityEndpointsResponse(rsp *http.Response) (*ListIdentityEndpointsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListIdentityEndpointsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []IdentityEndpoints
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	}

	return response, nil
}

// ParseGetIdentityResponse parses an HTTP response from a GetIdentityWithResponse call
func ParseGetIdentityResponse(rsp *http.Response) (*GetIdentityResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetIdentityResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest Identity
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 520:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON520 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 521:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON521 = &dest

	}

	return response, nil
}

// ParseListIPsResponse parses an HTTP response from a ListIPsWithResponse call
func ParseListIPsResponse(rsp *http.Response) (*ListIPsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListIPsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []IPListEntry
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	}

	return response, nil
}

// ParseAllocateIPResponse parses an HTTP response from a AllocateIPWithResponse call
func ParseAllocateIPResponse(rsp *http.Response) (*AllocateIPResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &AllocateIPResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 201:
		var dest IPAMResponse
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON201 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 403:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON403 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 502:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON502 = &dest

	}

	return response, nil
}

// ParseReleaseIPResponse parses an HTTP response from a ReleaseIPWithResponse call
func ParseReleaseIPResponse(rsp *http.Response) (*ReleaseIPResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ReleaseIPResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case rsp.StatusCode == 200:
		break // No content-type

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 403:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON403 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 501:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON501 = &dest

	}

	return response, nil
}

// ParseReserveIPResponse parses an HTTP response from a ReserveIPWithResponse call
func ParseReserveIPResponse(rsp *http.Response) (*ReserveIPResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ReserveIPResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case rsp.StatusCode == 200:
		break // No content-type

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 403:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON403 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 409:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON409 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 501:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON501 = &dest

	}

	return response, nil
}

// ParseListLRPsResponse parses an HTTP response from a ListLRPsWithResponse call
func ParseListLRPsResponse(rsp *http.Response) (*ListLRPsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListLRPsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []map[string]interface{}
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseListMapsResponse parses an HTTP response from a ListMapsWithResponse call
func ParseListMapsResponse(rsp *http.Response) (*ListMapsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListMapsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest BPFMapList
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseGetMapResponse parses an HTTP response from a GetMapWithResponse call
func ParseGetMapResponse(rsp *http.Response) (*GetMapResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetMapResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest BPFMap
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	}

	return response, nil
}

// ParseListMapEventsResponse parses an HTTP response from a ListMapEventsWithResponse call
func ParseListMapEventsResponse(rsp *http.Response) (*ListMapEventsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListMapEventsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	}

	return response, nil
}

// ParseListMetricsResponse parses an HTTP response from a ListMetricsWithResponse call
func ParseListMetricsResponse(rsp *http.Response) (*ListMetricsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListMetricsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []Metric
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	}

	return response, nil
}

// ParseMonitorResponse parses an HTTP response from a MonitorWithResponse call
func ParseMonitorResponse(rsp *http.Response) (*MonitorResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &MonitorResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	}

	return response, nil
}

// ParseListNodeIDsResponse parses an HTTP response from a ListNodeIDsWithResponse call
func ParseListNodeIDsResponse(rsp *http.Response) (*ListNodeIDsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListNodeIDsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []NodeID
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseGetPolicyResponse parses an HTTP response from a GetPolicyWithResponse call
func ParseGetPolicyResponse(rsp *http.Response) (*GetPolicyResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetPolicyResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest Policy
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	}

	return response, nil
}

// ParseListPolicyFilesResponse parses an HTTP response from a ListPolicyFilesWithResponse call
func ParseListPolicyFilesResponse(rsp *http.Response) (*ListPolicyFilesResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListPolicyFilesResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []PolicyFile
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseListSelectorsResponse parses an HTTP response from a ListSelectorsWithResponse call
func ParseListSelectorsResponse(rsp *http.Response) (*ListSelectorsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListSelectorsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []SelectorIdentityMapping
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseListSubjectSelectorsResponse parses an HTTP response from a ListSubjectSelectorsWithResponse call
func ParseListSubjectSelectorsResponse(rsp *http.Response) (*ListSubjectSelectorsResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListSubjectSelectorsResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []SelectorIdentityMapping
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}

// ParseTracePolicyResponse parses an HTTP response from a TracePolicyWithResponse call
func ParseTracePolicyResponse(rsp *http.Response) (*TracePolicyResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &TracePolicyResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest PolicyTrace
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 400:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON400 = &dest

	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 404:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON404 = &dest

	}

	return response, nil
}

// ParseDeletePrefilterResponse parses an HTTP response from a DeletePrefilterWithResponse call
func ParseDeletePrefilterResponse(rsp *http.Response) (*DeletePrefilterResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &DeletePrefilterResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	}

	return response, nil
}

// ParseGetPrefilterResponse parses an HTTP response from a GetPrefilterWithResponse call
func ParseGetPrefilterResponse(rsp *http.Response) (*GetPrefilterResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &GetPrefilterResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	}

	return response, nil
}

// ParsePatchPrefilterResponse parses an HTTP response from a PatchPrefilterWithResponse call
func ParsePatchPrefilterResponse(rsp *http.Response) (*PatchPrefilterResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &PatchPrefilterResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 500:
		var dest ErrorMessage
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON500 = &dest

	}

	return response, nil
}

// ParseListServicesResponse parses an HTTP response from a ListServicesWithResponse call
func ParseListServicesResponse(rsp *http.Response) (*ListServicesResponse, error) {
	bodyBytes, err := io.ReadAll(rsp.Body)
	defer func() { _ = rsp.Body.Close() }()
	if err != nil {
		return nil, err
	}

	response := &ListServicesResponse{
		Body:         bodyBytes,
		HTTPResponse: rsp,
	}

	switch {
	case strings.Contains(rsp.Header.Get("Content-Type"), "json") && rsp.StatusCode == 200:
		var dest []Service
		if err := json.Unmarshal(bodyBytes, &dest); err != nil {
			return nil, err
		}
		response.JSON200 = &dest

	}

	return response, nil
}
