// Code generated from api/openapi.yaml by oapi-codegen v2.8.2. DO NOT EDIT.

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/oapi-codegen/runtime"

	. "github.com/hawser-net/hawser/api/rest"
)

// ServerInterface represents all server handlers.
type ServerInterface interface {
	// ListBGPPeers Peers of BGP, which is not supported
	// (GET /bgp/peers)
	ListBGPPeers(w http.ResponseWriter, r *http.Request)
	// ListBGPRoutePolicies Policies of BGP, which is not supported
	// (GET /bgp/route-policies)
	ListBGPRoutePolicies(w http.ResponseWriter, r *http.Request)
	// ListBGPRoutes Routes of BGP, which is not supported
	// (GET /bgp/routes)
	ListBGPRoutes(w http.ResponseWriter, r *http.Request)
	// GetCgroupMetadata Cgroups of pods, which nothing here needs; the list is empty
	// (GET /cgroup-dump-metadata)
	GetCgroupMetadata(w http.ResponseWriter, r *http.Request)
	// GetClusterHealth Hawser: which nodes this one reaches, and since when it does not
	// (GET /cluster/health)
	GetClusterHealth(w http.ResponseWriter, r *http.Request)
	// GetClusterNodes List the nodes, or what changed since this client asked last
	// (GET /cluster/nodes)
	GetClusterNodes(w http.ResponseWriter, r *http.Request, params GetClusterNodesParams)
	// GetConfig Configuration in force and facts a CNI plugin needs
	// (GET /config)
	GetConfig(w http.ResponseWriter, r *http.Request)
	// PatchConfig Change options that can change at run time
	// (PATCH /config)
	PatchConfig(w http.ResponseWriter, r *http.Request)
	// GetDebugInfo The state of the agent for a bug report, without secrets
	// (GET /debuginfo)
	GetDebugInfo(w http.ResponseWriter, r *http.Request)
	// DeleteEndpoints Delete all endpoints of a container
	// (DELETE /endpoint)
	DeleteEndpoints(w http.ResponseWriter, r *http.Request)
	// ListEndpoints List the endpoints of this node
	// (GET /endpoint)
	ListEndpoints(w http.ResponseWriter, r *http.Request)
	// DeleteEndpoint Delete an endpoint
	// (DELETE /endpoint/{id})
	DeleteEndpoint(w http.ResponseWriter, r *http.Request, id EndpointID)
	// GetEndpoint Get an endpoint
	// (GET /endpoint/{id})
	GetEndpoint(w http.ResponseWriter, r *http.Request, id EndpointID)
	// PatchEndpoint Change an endpoint
	// (PATCH /endpoint/{id})
	PatchEndpoint(w http.ResponseWriter, r *http.Request, id EndpointID)
	// CreateEndpoint Create an endpoint
	// (PUT /endpoint/{id})
	CreateEndpoint(w http.ResponseWriter, r *http.Request, id EndpointID)
	// GetEndpointConfig Get an endpoint's options
	// (GET /endpoint/{id}/config)
	GetEndpointConfig(w http.ResponseWriter, r *http.Request, id EndpointID)
	// PatchEndpointConfig Change an endpoint's options
	// (PATCH /endpoint/{id}/config)
	PatchEndpointConfig(w http.ResponseWriter, r *http.Request, id EndpointID)
	// GetEndpointHealth Get an endpoint's health
	// (GET /endpoint/{id}/healthz)
	GetEndpointHealth(w http.ResponseWriter, r *http.Request, id EndpointID)
	// GetEndpointLabels Get an endpoint's labels
	// (GET /endpoint/{id}/labels)
	GetEndpointLabels(w http.ResponseWriter, r *http.Request, id EndpointID)
	// PatchEndpointLabels Replace an endpoint's user labels
	// (PATCH /endpoint/{id}/labels)
	PatchEndpointLabels(w http.ResponseWriter, r *http.Request, id EndpointID)
	// GetEndpointLog Get what happened to an endpoint, newest first; also to one of the last that are gone
	// (GET /endpoint/{id}/log)
	GetEndpointLog(w http.ResponseWriter, r *http.Request, id EndpointID)
	// DeleteFQDNs Forget names that pods have looked up; there are none
	// (DELETE /fqdn/cache)
	DeleteFQDNs(w http.ResponseWriter, r *http.Request)
	// ListFQDNs Names that pods have looked up; there is no proxy that sees them
	// (GET /fqdn/cache)
	ListFQDNs(w http.ResponseWriter, r *http.Request)
	// ListEndpointFQDNs Names that an endpoint has looked up; there is no proxy that sees them
	// (GET /fqdn/cache/{id})
	ListEndpointFQDNs(w http.ResponseWriter, r *http.Request, id EndpointID)
	// GetFQDNNames Selectors of names, which policies here cannot have
	// (GET /fqdn/names)
	GetFQDNNames(w http.ResponseWriter, r *http.Request)
	// GetHealthz Health of the agent and of its parts
	// (GET /healthz)
	GetHealthz(w http.ResponseWriter, r *http.Request, params GetHealthzParams)
	// ListIdentities List the identities this node knows
	// (GET /identity)
	ListIdentities(w http.ResponseWriter, r *http.Request)
	// ListIdentityEndpoints List the identities local endpoints use, with how many use each
	// (GET /identity/endpoints)
	ListIdentityEndpoints(w http.ResponseWriter, r *http.Request)
	// GetIdentity Get an identity by its number
	// (GET /identity/{id})
	GetIdentity(w http.ResponseWriter, r *http.Request, id string)
	// ListIPs List addresses with their identities
	// (GET /ip)
	ListIPs(w http.ResponseWriter, r *http.Request, params ListIPsParams)
	// AllocateIP Allocate an address of each enabled family, or of one
	// (POST /ipam)
	AllocateIP(w http.ResponseWriter, r *http.Request, params AllocateIPParams)
	// ReleaseIP Release one address
	// (DELETE /ipam/{ip})
	ReleaseIP(w http.ResponseWriter, r *http.Request, ip string, params ReleaseIPParams)
	// ReserveIP Reserve one address
	// (POST /ipam/{ip})
	ReserveIP(w http.ResponseWriter, r *http.Request, ip string, params ReserveIPParams)
	// ListLRPs Local redirect policies, which are not supported; the list is empty
	// (GET /lrp)
	ListLRPs(w http.ResponseWriter, r *http.Request)
	// ListMaps List the kernel maps
	// (GET /map)
	ListMaps(w http.ResponseWriter, r *http.Request)
	// GetMap Get the content of a kernel map
	// (GET /map/{name})
	GetMap(w http.ResponseWriter, r *http.Request, name string)
	// ListMapEvents Changes of a kernel map; none are kept
	// (GET /map/{name}/events)
	ListMapEvents(w http.ResponseWriter, r *http.Request, name string)
	// ListMetrics The values of all metrics now
	// (GET /metrics)
	ListMetrics(w http.ResponseWriter, r *http.Request)
	// Monitor Hawser: stream datapath events as JSON lines until the client closes
	// (GET /monitor)
	Monitor(w http.ResponseWriter, r *http.Request, params MonitorParams)
	// ListNodeIDs List the numbers this node gave to nodes
	// (GET /node/ids)
	ListNodeIDs(w http.ResponseWriter, r *http.Request)
	// GetPolicy Get all rules in force
	// (GET /policy)
	GetPolicy(w http.ResponseWriter, r *http.Request)
	// ListPolicyFiles Hawser: list the files of the static policy directory and the policies of Kubernetes
	// (GET /policy/files)
	ListPolicyFiles(w http.ResponseWriter, r *http.Request)
	// ListSelectors List the peer selectors in use and the identities each selects
	// (GET /policy/selectors)
	ListSelectors(w http.ResponseWriter, r *http.Request)
	// ListSubjectSelectors List the subject selectors in use and the identities each selects
	// (GET /policy/subject-selectors)
	ListSubjectSelectors(w http.ResponseWriter, r *http.Request)
	// TracePolicy Hawser: explain why one side would reach the other, rule by rule
	// (GET /policy/trace)
	TracePolicy(w http.ResponseWriter, r *http.Request, params TracePolicyParams)
	// DeletePrefilter Remove prefixes to filter; there is no such filter
	// (DELETE /prefilter)
	DeletePrefilter(w http.ResponseWriter, r *http.Request)
	// GetPrefilter Prefixes that are filtered before all else; there is no such filter
	// (GET /prefilter)
	GetPrefilter(w http.ResponseWriter, r *http.Request)
	// PatchPrefilter Add prefixes to filter; there is no such filter
	// (PATCH /prefilter)
	PatchPrefilter(w http.ResponseWriter, r *http.Request)
	// ListServices List the frontends of services and where they lead
	// (GET /service)
	ListServices(w http.ResponseWriter, r *http.Request)
}

// ServerInterfaceWrapper converts contexts to parameters.
type ServerInterfaceWrapper struct {
	Handler            ServerInterface
	HandlerMiddlewares []MiddlewareFunc
	ErrorHandlerFunc   func(w http.ResponseWriter, r *http.Request, err error)
}

type MiddlewareFunc func(http.Handler) http.Handler

// ListBGPPeers operation middleware
func (siw *ServerInterfaceWrapper) ListBGPPeers(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListBGPPeers(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListBGPRoutePolicies operation middleware
func (siw *ServerInterfaceWrapper) ListBGPRoutePolicies(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListBGPRoutePolicies(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListBGPRoutes operation middleware
func (siw *ServerInterfaceWrapper) ListBGPRoutes(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListBGPRoutes(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetCgroupMetadata operation middleware
func (siw *ServerInterfaceWrapper) GetCgroupMetadata(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetCgroupMetadata(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetClusterHealth operation middleware
func (siw *ServerInterfaceWrapper) GetClusterHealth(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetClusterHealth(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetClusterNodes operation middleware
func (siw *ServerInterfaceWrapper) GetClusterNodes(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// Parameter object where we will unmarshal all parameters from the context
	var params GetClusterNodesParams

	headers := r.Header

	// ------------- Optional header parameter "client-id" -------------
	if valueList, found := headers[http.CanonicalHeaderKey("client-id")]; found {
		var ClientID int
		n := len(valueList)
		if n != 1 {
			siw.ErrorHandlerFunc(w, r, &TooManyValuesForParamError{ParamName: "client-id", Count: n})
			return
		}

		err = runtime.BindStyledParameterWithOptions("simple", "client-id", valueList[0], &ClientID, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationHeader, Explode: false, Required: false, Type: "integer", Format: ""})
		if err != nil {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "client-id", Err: err})
			return
		}

		params.ClientID = ClientID

	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetClusterNodes(w, r, params)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetConfig operation middleware
func (siw *ServerInterfaceWrapper) GetConfig(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetConfig(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// PatchConfig operation middleware
func (siw *ServerInterfaceWrapper) PatchConfig(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.PatchConfig(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetDebugInfo operation middleware
func (siw *ServerInterfaceWrapper) GetDebugInfo(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetDebugInfo(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// DeleteEndpoints operation middleware
func (siw *ServerInterfaceWrapper) DeleteEndpoints(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.DeleteEndpoints(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListEndpoints operation middleware
func (siw *ServerInterfaceWrapper) ListEndpoints(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListEndpoints(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// DeleteEndpoint operation middleware
func (siw *ServerInterfaceWrapper) DeleteEndpoint(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.DeleteEndpoint(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetEndpoint operation middleware
func (siw *ServerInterfaceWrapper) GetEndpoint(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetEndpoint(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// PatchEndpoint operation middleware
func (siw *ServerInterfaceWrapper) PatchEndpoint(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.PatchEndpoint(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// CreateEndpoint operation middleware
func (siw *ServerInterfaceWrapper) CreateEndpoint(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.CreateEndpoint(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetEndpointConfig operation middleware
func (siw *ServerInterfaceWrapper) GetEndpointConfig(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetEndpointConfig(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// PatchEndpointConfig operation middleware
func (siw *ServerInterfaceWrapper) PatchEndpointConfig(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.PatchEndpointConfig(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetEndpointHealth operation middleware
func (siw *ServerInterfaceWrapper) GetEndpointHealth(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetEndpointHealth(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetEndpointLabels operation middleware
func (siw *ServerInterfaceWrapper) GetEndpointLabels(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetEndpointLabels(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// PatchEndpointLabels operation middleware
func (siw *ServerInterfaceWrapper) PatchEndpointLabels(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.PatchEndpointLabels(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetEndpointLog operation middleware
func (siw *ServerInterfaceWrapper) GetEndpointLog(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetEndpointLog(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// DeleteFQDNs operation middleware
func (siw *ServerInterfaceWrapper) DeleteFQDNs(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.DeleteFQDNs(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListFQDNs operation middleware
func (siw *ServerInterfaceWrapper) ListFQDNs(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListFQDNs(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListEndpointFQDNs operation middleware
func (siw *ServerInterfaceWrapper) ListEndpointFQDNs(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id EndpointID

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListEndpointFQDNs(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetFQDNNames operation middleware
func (siw *ServerInterfaceWrapper) GetFQDNNames(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetFQDNNames(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetHealthz operation middleware
func (siw *ServerInterfaceWrapper) GetHealthz(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// Parameter object where we will unmarshal all parameters from the context
	var params GetHealthzParams

	headers := r.Header

	// ------------- Optional header parameter "brief" -------------
	if valueList, found := headers[http.CanonicalHeaderKey("brief")]; found {
		var Brief bool
		n := len(valueList)
		if n != 1 {
			siw.ErrorHandlerFunc(w, r, &TooManyValuesForParamError{ParamName: "brief", Count: n})
			return
		}

		err = runtime.BindStyledParameterWithOptions("simple", "brief", valueList[0], &Brief, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationHeader, Explode: false, Required: false, Type: "boolean", Format: ""})
		if err != nil {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "brief", Err: err})
			return
		}

		params.Brief = Brief

	}

	// ------------- Optional header parameter "require-k8s-connectivity" -------------
	if valueList, found := headers[http.CanonicalHeaderKey("require-k8s-connectivity")]; found {
		var RequireK8SConnectivity bool
		n := len(valueList)
		if n != 1 {
			siw.ErrorHandlerFunc(w, r, &TooManyValuesForParamError{ParamName: "require-k8s-connectivity", Count: n})
			return
		}

		err = runtime.BindStyledParameterWithOptions("simple", "require-k8s-connectivity", valueList[0], &RequireK8SConnectivity, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationHeader, Explode: false, Required: false, Type: "boolean", Format: ""})
		if err != nil {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "require-k8s-connectivity", Err: err})
			return
		}

		params.RequireK8SConnectivity = &RequireK8SConnectivity

	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetHealthz(w, r, params)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListIdentities operation middleware
func (siw *ServerInterfaceWrapper) ListIdentities(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListIdentities(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListIdentityEndpoints operation middleware
func (siw *ServerInterfaceWrapper) ListIdentityEndpoints(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListIdentityEndpoints(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetIdentity operation middleware
func (siw *ServerInterfaceWrapper) GetIdentity(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "id" -------------
	var id string

	err = runtime.BindStyledParameterWithOptions("simple", "id", r.PathValue("id"), &id, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "id", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetIdentity(w, r, id)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListIPs operation middleware
func (siw *ServerInterfaceWrapper) ListIPs(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// Parameter object where we will unmarshal all parameters from the context
	var params ListIPsParams

	// ------------- Optional query parameter "cidr" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "cidr", r.URL.Query(), &params.CIDR, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "cidr"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "cidr", Err: err})
		}
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListIPs(w, r, params)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// AllocateIP operation middleware
func (siw *ServerInterfaceWrapper) AllocateIP(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// Parameter object where we will unmarshal all parameters from the context
	var params AllocateIPParams

	// ------------- Optional query parameter "family" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "family", r.URL.Query(), &params.Family, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "family"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "family", Err: err})
		}
		return
	}

	// ------------- Optional query parameter "owner" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "owner", r.URL.Query(), &params.Owner, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "owner"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "owner", Err: err})
		}
		return
	}

	// ------------- Optional query parameter "pool" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "pool", r.URL.Query(), &params.Pool, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "pool"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "pool", Err: err})
		}
		return
	}

	headers := r.Header

	// ------------- Optional header parameter "expiration" -------------
	if valueList, found := headers[http.CanonicalHeaderKey("expiration")]; found {
		var Expiration bool
		n := len(valueList)
		if n != 1 {
			siw.ErrorHandlerFunc(w, r, &TooManyValuesForParamError{ParamName: "expiration", Count: n})
			return
		}

		err = runtime.BindStyledParameterWithOptions("simple", "expiration", valueList[0], &Expiration, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationHeader, Explode: false, Required: false, Type: "boolean", Format: ""})
		if err != nil {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "expiration", Err: err})
			return
		}

		params.Expiration = Expiration

	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.AllocateIP(w, r, params)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ReleaseIP operation middleware
func (siw *ServerInterfaceWrapper) ReleaseIP(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "ip" -------------
	var ip string

	err = runtime.BindStyledParameterWithOptions("simple", "ip", r.PathValue("ip"), &ip, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "ip", Err: err})
		return
	}

	// Parameter object where we will unmarshal all parameters from the context
	var params ReleaseIPParams

	// ------------- Optional query parameter "pool" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "pool", r.URL.Query(), &params.Pool, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "pool"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "pool", Err: err})
		}
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ReleaseIP(w, r, ip, params)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ReserveIP operation middleware
func (siw *ServerInterfaceWrapper) ReserveIP(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "ip" -------------
	var ip string

	err = runtime.BindStyledParameterWithOptions("simple", "ip", r.PathValue("ip"), &ip, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "ip", Err: err})
		return
	}

	// Parameter object where we will unmarshal all parameters from the context
	var params ReserveIPParams

	// ------------- Optional query parameter "owner" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "owner", r.URL.Query(), &params.Owner, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "owner"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "owner", Err: err})
		}
		return
	}

	// ------------- Optional query parameter "pool" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "pool", r.URL.Query(), &params.Pool, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "pool"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "pool", Err: err})
		}
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ReserveIP(w, r, ip, params)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListLRPs operation middleware
func (siw *ServerInterfaceWrapper) ListLRPs(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListLRPs(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListMaps operation middleware
func (siw *ServerInterfaceWrapper) ListMaps(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListMaps(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetMap operation middleware
func (siw *ServerInterfaceWrapper) GetMap(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "name" -------------
	var name string

	err = runtime.BindStyledParameterWithOptions("simple", "name", r.PathValue("name"), &name, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "name", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetMap(w, r, name)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListMapEvents operation middleware
func (siw *ServerInterfaceWrapper) ListMapEvents(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// ------------- Path parameter "name" -------------
	var name string

	err = runtime.BindStyledParameterWithOptions("simple", "name", r.PathValue("name"), &name, runtime.BindStyledParameterOptions{ParamLocation: runtime.ParamLocationPath, Explode: false, Required: true, Type: "string", Format: "", ValueIsUnescaped: true})
	if err != nil {
		siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "name", Err: err})
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListMapEvents(w, r, name)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListMetrics operation middleware
func (siw *ServerInterfaceWrapper) ListMetrics(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListMetrics(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// Monitor operation middleware
func (siw *ServerInterfaceWrapper) Monitor(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// Parameter object where we will unmarshal all parameters from the context
	var params MonitorParams

	// ------------- Optional query parameter "type" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "type", r.URL.Query(), &params.Type, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "type"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "type", Err: err})
		}
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.Monitor(w, r, params)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListNodeIDs operation middleware
func (siw *ServerInterfaceWrapper) ListNodeIDs(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListNodeIDs(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetPolicy operation middleware
func (siw *ServerInterfaceWrapper) GetPolicy(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetPolicy(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListPolicyFiles operation middleware
func (siw *ServerInterfaceWrapper) ListPolicyFiles(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListPolicyFiles(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListSelectors operation middleware
func (siw *ServerInterfaceWrapper) ListSelectors(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListSelectors(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListSubjectSelectors operation middleware
func (siw *ServerInterfaceWrapper) ListSubjectSelectors(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListSubjectSelectors(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// TracePolicy operation middleware
func (siw *ServerInterfaceWrapper) TracePolicy(w http.ResponseWriter, r *http.Request) {

	var err error
	_ = err

	// Parameter object where we will unmarshal all parameters from the context
	var params TracePolicyParams

	// ------------- Required query parameter "from" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, true, "from", r.URL.Query(), &params.From, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "from"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "from", Err: err})
		}
		return
	}

	// ------------- Required query parameter "to" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, true, "to", r.URL.Query(), &params.To, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "to"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "to", Err: err})
		}
		return
	}

	// ------------- Optional query parameter "dport" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "dport", r.URL.Query(), &params.DPort, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "dport"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "dport", Err: err})
		}
		return
	}

	// ------------- Optional query parameter "proto" -------------

	err = runtime.BindQueryParameterWithOptions("form", true, false, "proto", r.URL.Query(), &params.Proto, runtime.BindQueryParameterOptions{Type: "string", Format: ""})
	if err != nil {
		var requiredError *runtime.RequiredParameterError
		if errors.As(err, &requiredError) {
			siw.ErrorHandlerFunc(w, r, &RequiredParamError{ParamName: "proto"})
		} else {
			siw.ErrorHandlerFunc(w, r, &InvalidParamFormatError{ParamName: "proto", Err: err})
		}
		return
	}

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.TracePolicy(w, r, params)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// DeletePrefilter operation middleware
func (siw *ServerInterfaceWrapper) DeletePrefilter(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.DeletePrefilter(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// GetPrefilter operation middleware
func (siw *ServerInterfaceWrapper) GetPrefilter(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.GetPrefilter(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// PatchPrefilter operation middleware
func (siw *ServerInterfaceWrapper) PatchPrefilter(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.PatchPrefilter(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

// ListServices operation middleware
func (siw *ServerInterfaceWrapper) ListServices(w http.ResponseWriter, r *http.Request) {

	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		siw.Handler.ListServices(w, r)
	}))

	for _, middleware := range siw.HandlerMiddlewares {
		handler = middleware(handler)
	}

	handler.ServeHTTP(w, r)
}

type UnescapedCookieParamError struct {
	ParamName string
	Err       error
}

func (e *UnescapedCookieParamError) Error() string {
	return fmt.Sprintf("error unescaping cookie parameter '%s'", e.ParamName)
}

func (e *UnescapedCookieParamError) Unwrap() error {
	return e.Err
}

type UnmarshalingParamError struct {
	ParamName string
	Err       error
}

func (e *UnmarshalingParamError) Error() string {
	return fmt.Sprintf("Error unmarshaling parameter %s as JSON: %s", e.ParamName, e.Err.Error())
}

func (e *UnmarshalingParamError) Unwrap() error {
	return e.Err
}

type RequiredParamError struct {
	ParamName string
}

func (e *RequiredParamError) Error() string {
	return fmt.Sprintf("Query argument %s is required, but not found", e.ParamName)
}

type RequiredHeaderError struct {
	ParamName string
	Err       error
}

func (e *RequiredHeaderError) Error() string {
	return fmt.Sprintf("Header parameter %s is required, but not found", e.ParamName)
}

func (e *RequiredHeaderError) Unwrap() error {
	return e.Err
}

type InvalidParamFormatError struct {
	ParamName string
	Err       error
}

func (e *InvalidParamFormatError) Error() string {
	return fmt.Sprintf("Invalid format for parameter %s: %s", e.ParamName, e.Err.Error())
}

func (e *InvalidParamFormatError) Unwrap() error {
	return e.Err
}

type TooManyValuesForParamError struct {
	ParamName string
	Count     int
}

func (e *TooManyValuesForParamError) Error() string {
	return fmt.Sprintf("Expected one value for %s, got %d", e.ParamName, e.Count)
}

// Handler creates http.Handler with routing matching OpenAPI spec.
func Handler(si ServerInterface) http.Handler {
	return HandlerWithOptions(si, StdHTTPServerOptions{})
}

// ServeMux is an abstraction of [http.ServeMux].
type ServeMux interface {
	HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request))
	http.Handler
}

type StdHTTPServerOptions struct {
	BaseURL          string
	BaseRouter       ServeMux
	Middlewares      []MiddlewareFunc
	ErrorHandlerFunc func(w http.ResponseWriter, r *http.Request, err error)
}

// HandlerFromMux creates http.Handler with routing matching OpenAPI spec based on the provided mux.
func HandlerFromMux(si ServerInterface, m ServeMux) http.Handler {
	return HandlerWithOptions(si, StdHTTPServerOptions{
		BaseRouter: m,
	})
}

func HandlerFromMuxWithBaseURL(si ServerInterface, m ServeMux, baseURL string) http.Handler {
	return HandlerWithOptions(si, StdHTTPServerOptions{
		BaseURL:    baseURL,
		BaseRouter: m,
	})
}

// HandlerWithOptions creates http.Handler with additional options
func HandlerWithOptions(si ServerInterface, options StdHTTPServerOptions) http.Handler {
	m := options.BaseRouter

	if m == nil {
		m = http.NewServeMux()
	}
	if options.ErrorHandlerFunc == nil {
		options.ErrorHandlerFunc = func(w http.ResponseWriter, r *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}

	wrapper := ServerInterfaceWrapper{
		Handler:            si,
		HandlerMiddlewares: options.Middlewares,
		ErrorHandlerFunc:   options.ErrorHandlerFunc,
	}

	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/healthz", wrapper.GetHealthz)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/config", wrapper.GetConfig)
	m.HandleFunc(http.MethodPatch+" "+options.BaseURL+"/config", wrapper.PatchConfig)
	m.HandleFunc(http.MethodPost+" "+options.BaseURL+"/ipam", wrapper.AllocateIP)
	m.HandleFunc(http.MethodDelete+" "+options.BaseURL+"/ipam/{ip}", wrapper.ReleaseIP)
	m.HandleFunc(http.MethodPost+" "+options.BaseURL+"/ipam/{ip}", wrapper.ReserveIP)
	m.HandleFunc(http.MethodDelete+" "+options.BaseURL+"/endpoint", wrapper.DeleteEndpoints)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/endpoint", wrapper.ListEndpoints)
	m.HandleFunc(http.MethodDelete+" "+options.BaseURL+"/endpoint/{id}", wrapper.DeleteEndpoint)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/endpoint/{id}", wrapper.GetEndpoint)
	m.HandleFunc(http.MethodPatch+" "+options.BaseURL+"/endpoint/{id}", wrapper.PatchEndpoint)
	m.HandleFunc(http.MethodPut+" "+options.BaseURL+"/endpoint/{id}", wrapper.CreateEndpoint)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/endpoint/{id}/config", wrapper.GetEndpointConfig)
	m.HandleFunc(http.MethodPatch+" "+options.BaseURL+"/endpoint/{id}/config", wrapper.PatchEndpointConfig)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/endpoint/{id}/labels", wrapper.GetEndpointLabels)
	m.HandleFunc(http.MethodPatch+" "+options.BaseURL+"/endpoint/{id}/labels", wrapper.PatchEndpointLabels)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/endpoint/{id}/log", wrapper.GetEndpointLog)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/endpoint/{id}/healthz", wrapper.GetEndpointHealth)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/identity", wrapper.ListIdentities)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/identity/endpoints", wrapper.ListIdentityEndpoints)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/identity/{id}", wrapper.GetIdentity)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/ip", wrapper.ListIPs)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/service", wrapper.ListServices)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/policy", wrapper.GetPolicy)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/policy/selectors", wrapper.ListSelectors)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/policy/subject-selectors", wrapper.ListSubjectSelectors)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/policy/files", wrapper.ListPolicyFiles)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/policy/trace", wrapper.TracePolicy)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/node/ids", wrapper.ListNodeIDs)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/cluster/nodes", wrapper.GetClusterNodes)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/cluster/health", wrapper.GetClusterHealth)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/map", wrapper.ListMaps)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/map/{name}", wrapper.GetMap)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/map/{name}/events", wrapper.ListMapEvents)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/metrics", wrapper.ListMetrics)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/debuginfo", wrapper.GetDebugInfo)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/lrp", wrapper.ListLRPs)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/cgroup-dump-metadata", wrapper.GetCgroupMetadata)
	m.HandleFunc(http.MethodDelete+" "+options.BaseURL+"/fqdn/cache", wrapper.DeleteFQDNs)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/fqdn/cache", wrapper.ListFQDNs)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/fqdn/cache/{id}", wrapper.ListEndpointFQDNs)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/fqdn/names", wrapper.GetFQDNNames)
	m.HandleFunc(http.MethodDelete+" "+options.BaseURL+"/prefilter", wrapper.DeletePrefilter)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/prefilter", wrapper.GetPrefilter)
	m.HandleFunc(http.MethodPatch+" "+options.BaseURL+"/prefilter", wrapper.PatchPrefilter)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/bgp/peers", wrapper.ListBGPPeers)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/bgp/routes", wrapper.ListBGPRoutes)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/bgp/route-policies", wrapper.ListBGPRoutePolicies)
	m.HandleFunc(http.MethodGet+" "+options.BaseURL+"/monitor", wrapper.Monitor)

	return m
}

type ListBGPPeersRequestObject struct {
}

type ListBGPPeersResponseObject interface {
	VisitListBGPPeersResponse(w http.ResponseWriter) error
}

type ListBGPPeers501JSONResponse ErrorMessage

func (response ListBGPPeers501JSONResponse) VisitListBGPPeersResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(501)
	_, err := buf.WriteTo(w)
	return err
}

type ListBGPRoutePoliciesRequestObject struct {
}

type ListBGPRoutePoliciesResponseObject interface {
	VisitListBGPRoutePoliciesResponse(w http.ResponseWriter) error
}

type ListBGPRoutePolicies501JSONResponse ErrorMessage

func (response ListBGPRoutePolicies501JSONResponse) VisitListBGPRoutePoliciesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(501)
	_, err := buf.WriteTo(w)
	return err
}

type ListBGPRoutesRequestObject struct {
}

type ListBGPRoutesResponseObject interface {
	VisitListBGPRoutesResponse(w http.ResponseWriter) error
}

type ListBGPRoutes501JSONResponse ErrorMessage

func (response ListBGPRoutes501JSONResponse) VisitListBGPRoutesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(501)
	_, err := buf.WriteTo(w)
	return err
}

type GetCgroupMetadataRequestObject struct {
}

type GetCgroupMetadataResponseObject interface {
	VisitGetCgroupMetadataResponse(w http.ResponseWriter) error
}

type GetCgroupMetadata200JSONResponse CgroupMetadata

func (response GetCgroupMetadata200JSONResponse) VisitGetCgroupMetadataResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetClusterHealthRequestObject struct {
}

type GetClusterHealthResponseObject interface {
	VisitGetClusterHealthResponse(w http.ResponseWriter) error
}

type GetClusterHealth200JSONResponse HealthStatus

func (response GetClusterHealth200JSONResponse) VisitGetClusterHealthResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetClusterHealth501JSONResponse ErrorMessage

func (response GetClusterHealth501JSONResponse) VisitGetClusterHealthResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(501)
	_, err := buf.WriteTo(w)
	return err
}

type GetClusterNodesRequestObject struct {
	Params GetClusterNodesParams
}

type GetClusterNodesResponseObject interface {
	VisitGetClusterNodesResponse(w http.ResponseWriter) error
}

type GetClusterNodes200JSONResponse ClusterNodeStatus

func (response GetClusterNodes200JSONResponse) VisitGetClusterNodesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetConfigRequestObject struct {
}

type GetConfigResponseObject interface {
	VisitGetConfigResponse(w http.ResponseWriter) error
}

type GetConfig200JSONResponse DaemonConfiguration

func (response GetConfig200JSONResponse) VisitGetConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type PatchConfigRequestObject struct {
	Body *PatchConfigJSONRequestBody
}

type PatchConfigResponseObject interface {
	VisitPatchConfigResponse(w http.ResponseWriter) error
}

type PatchConfig200Response struct {
}

func (response PatchConfig200Response) VisitPatchConfigResponse(w http.ResponseWriter) error {
	w.WriteHeader(200)
	return nil
}

type PatchConfig400JSONResponse ErrorMessage

func (response PatchConfig400JSONResponse) VisitPatchConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type PatchConfig403JSONResponse ErrorMessage

func (response PatchConfig403JSONResponse) VisitPatchConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(403)
	_, err := buf.WriteTo(w)
	return err
}

type PatchConfig500JSONResponse ErrorMessage

func (response PatchConfig500JSONResponse) VisitPatchConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type GetDebugInfoRequestObject struct {
}

type GetDebugInfoResponseObject interface {
	VisitGetDebugInfoResponse(w http.ResponseWriter) error
}

type GetDebugInfo200JSONResponse DebugInfo

func (response GetDebugInfo200JSONResponse) VisitGetDebugInfoResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetDebugInfo500JSONResponse ErrorMessage

func (response GetDebugInfo500JSONResponse) VisitGetDebugInfoResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpointsRequestObject struct {
	Body *DeleteEndpointsJSONRequestBody
}

type DeleteEndpointsResponseObject interface {
	VisitDeleteEndpointsResponse(w http.ResponseWriter) error
}

type DeleteEndpoints200Response struct {
}

func (response DeleteEndpoints200Response) VisitDeleteEndpointsResponse(w http.ResponseWriter) error {
	w.WriteHeader(200)
	return nil
}

type DeleteEndpoints206JSONResponse ErrorCount

func (response DeleteEndpoints206JSONResponse) VisitDeleteEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(206)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpoints400JSONResponse ErrorMessage

func (response DeleteEndpoints400JSONResponse) VisitDeleteEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpoints404JSONResponse ErrorMessage

func (response DeleteEndpoints404JSONResponse) VisitDeleteEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpoints429JSONResponse ErrorMessage

func (response DeleteEndpoints429JSONResponse) VisitDeleteEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpoints503JSONResponse ErrorMessage

func (response DeleteEndpoints503JSONResponse) VisitDeleteEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(503)
	_, err := buf.WriteTo(w)
	return err
}

type ListEndpointsRequestObject struct {
	Body *ListEndpointsJSONRequestBody
}

type ListEndpointsResponseObject interface {
	VisitListEndpointsResponse(w http.ResponseWriter) error
}

type ListEndpoints200JSONResponse []Endpoint

func (response ListEndpoints200JSONResponse) VisitListEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type ListEndpoints404JSONResponse ErrorMessage

func (response ListEndpoints404JSONResponse) VisitListEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type ListEndpoints429JSONResponse ErrorMessage

func (response ListEndpoints429JSONResponse) VisitListEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpointRequestObject struct {
	ID EndpointID `json:"id"`
}

type DeleteEndpointResponseObject interface {
	VisitDeleteEndpointResponse(w http.ResponseWriter) error
}

type DeleteEndpoint200Response struct {
}

func (response DeleteEndpoint200Response) VisitDeleteEndpointResponse(w http.ResponseWriter) error {
	w.WriteHeader(200)
	return nil
}

type DeleteEndpoint206JSONResponse ErrorCount

func (response DeleteEndpoint206JSONResponse) VisitDeleteEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(206)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpoint400JSONResponse ErrorMessage

func (response DeleteEndpoint400JSONResponse) VisitDeleteEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpoint403JSONResponse ErrorMessage

func (response DeleteEndpoint403JSONResponse) VisitDeleteEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(403)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpoint404JSONResponse ErrorMessage

func (response DeleteEndpoint404JSONResponse) VisitDeleteEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpoint429JSONResponse ErrorMessage

func (response DeleteEndpoint429JSONResponse) VisitDeleteEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteEndpoint503JSONResponse ErrorMessage

func (response DeleteEndpoint503JSONResponse) VisitDeleteEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(503)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointRequestObject struct {
	ID EndpointID `json:"id"`
}

type GetEndpointResponseObject interface {
	VisitGetEndpointResponse(w http.ResponseWriter) error
}

type GetEndpoint200JSONResponse Endpoint

func (response GetEndpoint200JSONResponse) VisitGetEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpoint400JSONResponse ErrorMessage

func (response GetEndpoint400JSONResponse) VisitGetEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpoint404JSONResponse ErrorMessage

func (response GetEndpoint404JSONResponse) VisitGetEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpoint429JSONResponse ErrorMessage

func (response GetEndpoint429JSONResponse) VisitGetEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointRequestObject struct {
	ID   EndpointID `json:"id"`
	Body *PatchEndpointJSONRequestBody
}

type PatchEndpointResponseObject interface {
	VisitPatchEndpointResponse(w http.ResponseWriter) error
}

type PatchEndpoint200JSONResponse Endpoint

func (response PatchEndpoint200JSONResponse) VisitPatchEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpoint400JSONResponse ErrorMessage

func (response PatchEndpoint400JSONResponse) VisitPatchEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpoint403JSONResponse ErrorMessage

func (response PatchEndpoint403JSONResponse) VisitPatchEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(403)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpoint404JSONResponse ErrorMessage

func (response PatchEndpoint404JSONResponse) VisitPatchEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpoint429JSONResponse ErrorMessage

func (response PatchEndpoint429JSONResponse) VisitPatchEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpoint500JSONResponse ErrorMessage

func (response PatchEndpoint500JSONResponse) VisitPatchEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpoint503JSONResponse ErrorMessage

func (response PatchEndpoint503JSONResponse) VisitPatchEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(503)
	_, err := buf.WriteTo(w)
	return err
}

type CreateEndpointRequestObject struct {
	ID   EndpointID `json:"id"`
	Body *CreateEndpointJSONRequestBody
}

type CreateEndpointResponseObject interface {
	VisitCreateEndpointResponse(w http.ResponseWriter) error
}

type CreateEndpoint201JSONResponse Endpoint

func (response CreateEndpoint201JSONResponse) VisitCreateEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(201)
	_, err := buf.WriteTo(w)
	return err
}

type CreateEndpoint400JSONResponse ErrorMessage

func (response CreateEndpoint400JSONResponse) VisitCreateEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type CreateEndpoint403JSONResponse ErrorMessage

func (response CreateEndpoint403JSONResponse) VisitCreateEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(403)
	_, err := buf.WriteTo(w)
	return err
}

type CreateEndpoint409JSONResponse ErrorMessage

func (response CreateEndpoint409JSONResponse) VisitCreateEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(409)
	_, err := buf.WriteTo(w)
	return err
}

type CreateEndpoint429JSONResponse ErrorMessage

func (response CreateEndpoint429JSONResponse) VisitCreateEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type CreateEndpoint500JSONResponse ErrorMessage

func (response CreateEndpoint500JSONResponse) VisitCreateEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type CreateEndpoint503JSONResponse ErrorMessage

func (response CreateEndpoint503JSONResponse) VisitCreateEndpointResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(503)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointConfigRequestObject struct {
	ID EndpointID `json:"id"`
}

type GetEndpointConfigResponseObject interface {
	VisitGetEndpointConfigResponse(w http.ResponseWriter) error
}

type GetEndpointConfig200JSONResponse EndpointConfigurationStatus

func (response GetEndpointConfig200JSONResponse) VisitGetEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointConfig400JSONResponse ErrorMessage

func (response GetEndpointConfig400JSONResponse) VisitGetEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointConfig404JSONResponse ErrorMessage

func (response GetEndpointConfig404JSONResponse) VisitGetEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointConfig429JSONResponse ErrorMessage

func (response GetEndpointConfig429JSONResponse) VisitGetEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointConfigRequestObject struct {
	ID   EndpointID `json:"id"`
	Body *PatchEndpointConfigJSONRequestBody
}

type PatchEndpointConfigResponseObject interface {
	VisitPatchEndpointConfigResponse(w http.ResponseWriter) error
}

type PatchEndpointConfig200Response struct {
}

func (response PatchEndpointConfig200Response) VisitPatchEndpointConfigResponse(w http.ResponseWriter) error {
	w.WriteHeader(200)
	return nil
}

type PatchEndpointConfig400JSONResponse ErrorMessage

func (response PatchEndpointConfig400JSONResponse) VisitPatchEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointConfig403JSONResponse ErrorMessage

func (response PatchEndpointConfig403JSONResponse) VisitPatchEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(403)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointConfig404JSONResponse ErrorMessage

func (response PatchEndpointConfig404JSONResponse) VisitPatchEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointConfig429JSONResponse ErrorMessage

func (response PatchEndpointConfig429JSONResponse) VisitPatchEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointConfig500JSONResponse ErrorMessage

func (response PatchEndpointConfig500JSONResponse) VisitPatchEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointConfig503JSONResponse ErrorMessage

func (response PatchEndpointConfig503JSONResponse) VisitPatchEndpointConfigResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(503)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointHealthRequestObject struct {
	ID EndpointID `json:"id"`
}

type GetEndpointHealthResponseObject interface {
	VisitGetEndpointHealthResponse(w http.ResponseWriter) error
}

type GetEndpointHealth200JSONResponse EndpointHealth

func (response GetEndpointHealth200JSONResponse) VisitGetEndpointHealthResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointHealth400JSONResponse ErrorMessage

func (response GetEndpointHealth400JSONResponse) VisitGetEndpointHealthResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointHealth404JSONResponse ErrorMessage

func (response GetEndpointHealth404JSONResponse) VisitGetEndpointHealthResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointHealth429JSONResponse ErrorMessage

func (response GetEndpointHealth429JSONResponse) VisitGetEndpointHealthResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointLabelsRequestObject struct {
	ID EndpointID `json:"id"`
}

type GetEndpointLabelsResponseObject interface {
	VisitGetEndpointLabelsResponse(w http.ResponseWriter) error
}

type GetEndpointLabels200JSONResponse LabelConfiguration

func (response GetEndpointLabels200JSONResponse) VisitGetEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointLabels400JSONResponse ErrorMessage

func (response GetEndpointLabels400JSONResponse) VisitGetEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointLabels404JSONResponse ErrorMessage

func (response GetEndpointLabels404JSONResponse) VisitGetEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointLabels429JSONResponse ErrorMessage

func (response GetEndpointLabels429JSONResponse) VisitGetEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointLabelsRequestObject struct {
	ID   EndpointID `json:"id"`
	Body *PatchEndpointLabelsJSONRequestBody
}

type PatchEndpointLabelsResponseObject interface {
	VisitPatchEndpointLabelsResponse(w http.ResponseWriter) error
}

type PatchEndpointLabels200Response struct {
}

func (response PatchEndpointLabels200Response) VisitPatchEndpointLabelsResponse(w http.ResponseWriter) error {
	w.WriteHeader(200)
	return nil
}

type PatchEndpointLabels400JSONResponse ErrorMessage

func (response PatchEndpointLabels400JSONResponse) VisitPatchEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointLabels403JSONResponse ErrorMessage

func (response PatchEndpointLabels403JSONResponse) VisitPatchEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(403)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointLabels404JSONResponse ErrorMessage

func (response PatchEndpointLabels404JSONResponse) VisitPatchEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointLabels429JSONResponse ErrorMessage

func (response PatchEndpointLabels429JSONResponse) VisitPatchEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointLabels500JSONResponse ErrorMessage

func (response PatchEndpointLabels500JSONResponse) VisitPatchEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type PatchEndpointLabels503JSONResponse ErrorMessage

func (response PatchEndpointLabels503JSONResponse) VisitPatchEndpointLabelsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(503)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointLogRequestObject struct {
	ID EndpointID `json:"id"`
}

type GetEndpointLogResponseObject interface {
	VisitGetEndpointLogResponse(w http.ResponseWriter) error
}

type GetEndpointLog200JSONResponse []EndpointStatusChange

func (response GetEndpointLog200JSONResponse) VisitGetEndpointLogResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointLog400JSONResponse ErrorMessage

func (response GetEndpointLog400JSONResponse) VisitGetEndpointLogResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointLog404JSONResponse ErrorMessage

func (response GetEndpointLog404JSONResponse) VisitGetEndpointLogResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type GetEndpointLog429JSONResponse ErrorMessage

func (response GetEndpointLog429JSONResponse) VisitGetEndpointLogResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(429)
	_, err := buf.WriteTo(w)
	return err
}

type DeleteFQDNsRequestObject struct {
}

type DeleteFQDNsResponseObject interface {
	VisitDeleteFQDNsResponse(w http.ResponseWriter) error
}

type DeleteFQDNs200Response struct {
}

func (response DeleteFQDNs200Response) VisitDeleteFQDNsResponse(w http.ResponseWriter) error {
	w.WriteHeader(200)
	return nil
}

type ListFQDNsRequestObject struct {
}

type ListFQDNsResponseObject interface {
	VisitListFQDNsResponse(w http.ResponseWriter) error
}

type ListFQDNs404JSONResponse ErrorMessage

func (response ListFQDNs404JSONResponse) VisitListFQDNsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type ListEndpointFQDNsRequestObject struct {
	ID EndpointID `json:"id"`
}

type ListEndpointFQDNsResponseObject interface {
	VisitListEndpointFQDNsResponse(w http.ResponseWriter) error
}

type ListEndpointFQDNs404JSONResponse ErrorMessage

func (response ListEndpointFQDNs404JSONResponse) VisitListEndpointFQDNsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type GetFQDNNamesRequestObject struct {
}

type GetFQDNNamesResponseObject interface {
	VisitGetFQDNNamesResponse(w http.ResponseWriter) error
}

type GetFQDNNames200JSONResponse NameManager

func (response GetFQDNNames200JSONResponse) VisitGetFQDNNamesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetHealthzRequestObject struct {
	Params GetHealthzParams
}

type GetHealthzResponseObject interface {
	VisitGetHealthzResponse(w http.ResponseWriter) error
}

type GetHealthz200JSONResponse StatusResponse

func (response GetHealthz200JSONResponse) VisitGetHealthzResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type ListIdentitiesRequestObject struct {
	Body *ListIdentitiesJSONRequestBody
}

type ListIdentitiesResponseObject interface {
	VisitListIdentitiesResponse(w http.ResponseWriter) error
}

type ListIdentities200JSONResponse []Identity

func (response ListIdentities200JSONResponse) VisitListIdentitiesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type ListIdentities404JSONResponse ErrorMessage

func (response ListIdentities404JSONResponse) VisitListIdentitiesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type ListIdentities520JSONResponse ErrorMessage

func (response ListIdentities520JSONResponse) VisitListIdentitiesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(520)
	_, err := buf.WriteTo(w)
	return err
}

type ListIdentities521JSONResponse ErrorMessage

func (response ListIdentities521JSONResponse) VisitListIdentitiesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(521)
	_, err := buf.WriteTo(w)
	return err
}

type ListIdentityEndpointsRequestObject struct {
}

type ListIdentityEndpointsResponseObject interface {
	VisitListIdentityEndpointsResponse(w http.ResponseWriter) error
}

type ListIdentityEndpoints200JSONResponse []IdentityEndpoints

func (response ListIdentityEndpoints200JSONResponse) VisitListIdentityEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type ListIdentityEndpoints404JSONResponse ErrorMessage

func (response ListIdentityEndpoints404JSONResponse) VisitListIdentityEndpointsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type GetIdentityRequestObject struct {
	ID string `json:"id"`
}

type GetIdentityResponseObject interface {
	VisitGetIdentityResponse(w http.ResponseWriter) error
}

type GetIdentity200JSONResponse Identity

func (response GetIdentity200JSONResponse) VisitGetIdentityResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetIdentity400JSONResponse ErrorMessage

func (response GetIdentity400JSONResponse) VisitGetIdentityResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type GetIdentity404JSONResponse ErrorMessage

func (response GetIdentity404JSONResponse) VisitGetIdentityResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type GetIdentity520JSONResponse ErrorMessage

func (response GetIdentity520JSONResponse) VisitGetIdentityResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(520)
	_, err := buf.WriteTo(w)
	return err
}

type GetIdentity521JSONResponse ErrorMessage

func (response GetIdentity521JSONResponse) VisitGetIdentityResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(521)
	_, err := buf.WriteTo(w)
	return err
}

type ListIPsRequestObject struct {
	Params ListIPsParams
	Body   *ListIPsJSONRequestBody
}

type ListIPsResponseObject interface {
	VisitListIPsResponse(w http.ResponseWriter) error
}

type ListIPs200JSONResponse []IPListEntry

func (response ListIPs200JSONResponse) VisitListIPsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type ListIPs400JSONResponse ErrorMessage

func (response ListIPs400JSONResponse) VisitListIPsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type ListIPs404JSONResponse ErrorMessage

func (response ListIPs404JSONResponse) VisitListIPsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type AllocateIPRequestObject struct {
	Params AllocateIPParams
}

type AllocateIPResponseObject interface {
	VisitAllocateIPResponse(w http.ResponseWriter) error
}

type AllocateIP201JSONResponse IPAMResponse

func (response AllocateIP201JSONResponse) VisitAllocateIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(201)
	_, err := buf.WriteTo(w)
	return err
}

type AllocateIP400JSONResponse ErrorMessage

func (response AllocateIP400JSONResponse) VisitAllocateIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type AllocateIP403JSONResponse ErrorMessage

func (response AllocateIP403JSONResponse) VisitAllocateIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(403)
	_, err := buf.WriteTo(w)
	return err
}

type AllocateIP502JSONResponse ErrorMessage

func (response AllocateIP502JSONResponse) VisitAllocateIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(502)
	_, err := buf.WriteTo(w)
	return err
}

type ReleaseIPRequestObject struct {
	IP     string `json:"ip"`
	Params ReleaseIPParams
}

type ReleaseIPResponseObject interface {
	VisitReleaseIPResponse(w http.ResponseWriter) error
}

type ReleaseIP200Response struct {
}

func (response ReleaseIP200Response) VisitReleaseIPResponse(w http.ResponseWriter) error {
	w.WriteHeader(200)
	return nil
}

type ReleaseIP400JSONResponse ErrorMessage

func (response ReleaseIP400JSONResponse) VisitReleaseIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type ReleaseIP403JSONResponse ErrorMessage

func (response ReleaseIP403JSONResponse) VisitReleaseIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(403)
	_, err := buf.WriteTo(w)
	return err
}

type ReleaseIP404JSONResponse ErrorMessage

func (response ReleaseIP404JSONResponse) VisitReleaseIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type ReleaseIP500JSONResponse ErrorMessage

func (response ReleaseIP500JSONResponse) VisitReleaseIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type ReleaseIP501JSONResponse ErrorMessage

func (response ReleaseIP501JSONResponse) VisitReleaseIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(501)
	_, err := buf.WriteTo(w)
	return err
}

type ReserveIPRequestObject struct {
	IP     string `json:"ip"`
	Params ReserveIPParams
}

type ReserveIPResponseObject interface {
	VisitReserveIPResponse(w http.ResponseWriter) error
}

type ReserveIP200Response struct {
}

func (response ReserveIP200Response) VisitReserveIPResponse(w http.ResponseWriter) error {
	w.WriteHeader(200)
	return nil
}

type ReserveIP400JSONResponse ErrorMessage

func (response ReserveIP400JSONResponse) VisitReserveIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type ReserveIP403JSONResponse ErrorMessage

func (response ReserveIP403JSONResponse) VisitReserveIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(403)
	_, err := buf.WriteTo(w)
	return err
}

type ReserveIP409JSONResponse ErrorMessage

func (response ReserveIP409JSONResponse) VisitReserveIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(409)
	_, err := buf.WriteTo(w)
	return err
}

type ReserveIP500JSONResponse ErrorMessage

func (response ReserveIP500JSONResponse) VisitReserveIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type ReserveIP501JSONResponse ErrorMessage

func (response ReserveIP501JSONResponse) VisitReserveIPResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(501)
	_, err := buf.WriteTo(w)
	return err
}

type ListLRPsRequestObject struct {
}

type ListLRPsResponseObject interface {
	VisitListLRPsResponse(w http.ResponseWriter) error
}

type ListLRPs200JSONResponse []map[string]interface{}

func (response ListLRPs200JSONResponse) VisitListLRPsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type ListMapsRequestObject struct {
}

type ListMapsResponseObject interface {
	VisitListMapsResponse(w http.ResponseWriter) error
}

type ListMaps200JSONResponse BPFMapList

func (response ListMaps200JSONResponse) VisitListMapsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetMapRequestObject struct {
	Name string `json:"name"`
}

type GetMapResponseObject interface {
	VisitGetMapResponse(w http.ResponseWriter) error
}

type GetMap200JSONResponse BPFMap

func (response GetMap200JSONResponse) VisitGetMapResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetMap404JSONResponse ErrorMessage

func (response GetMap404JSONResponse) VisitGetMapResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type ListMapEventsRequestObject struct {
	Name string `json:"name"`
}

type ListMapEventsResponseObject interface {
	VisitListMapEventsResponse(w http.ResponseWriter) error
}

type ListMapEvents404JSONResponse ErrorMessage

func (response ListMapEvents404JSONResponse) VisitListMapEventsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type ListMetricsRequestObject struct {
}

type ListMetricsResponseObject interface {
	VisitListMetricsResponse(w http.ResponseWriter) error
}

type ListMetrics200JSONResponse []Metric

func (response ListMetrics200JSONResponse) VisitListMetricsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type ListMetrics500JSONResponse ErrorMessage

func (response ListMetrics500JSONResponse) VisitListMetricsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type MonitorRequestObject struct {
	Params MonitorParams
}

type MonitorResponseObject interface {
	VisitMonitorResponse(w http.ResponseWriter) error
}

type Monitor200ApplicationXNdjsonResponse struct {
	Body          io.Reader
	ContentLength int64
}

func (response Monitor200ApplicationXNdjsonResponse) VisitMonitorResponse(w http.ResponseWriter) error {

	w.Header().Set("Content-Type", "application/x-ndjson")
	if response.ContentLength != 0 {
		w.Header().Set("Content-Length", fmt.Sprint(response.ContentLength))
	}
	w.WriteHeader(200)

	if closer, ok := response.Body.(io.ReadCloser); ok {
		defer closer.Close()
	}
	flusher, ok := w.(http.Flusher)
	if !ok {
		// If w doesn't support flushing, fall back to io.Copy.
		_, err := io.Copy(w, response.Body)
		return err
	}
	// text/event-stream messages are typically small; use a
	// modest buffer and flush after each chunk so clients see
	// events immediately instead of waiting on OS buffering.
	buf := make([]byte, 4096)
	for {
		n, err := response.Body.Read(buf)
		if n > 0 {
			if _, writeErr := w.Write(buf[:n]); writeErr != nil {
				return writeErr
			}
			flusher.Flush()
		}
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

type Monitor400JSONResponse ErrorMessage

func (response Monitor400JSONResponse) VisitMonitorResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type ListNodeIDsRequestObject struct {
}

type ListNodeIDsResponseObject interface {
	VisitListNodeIDsResponse(w http.ResponseWriter) error
}

type ListNodeIDs200JSONResponse []NodeID

func (response ListNodeIDs200JSONResponse) VisitListNodeIDsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetPolicyRequestObject struct {
}

type GetPolicyResponseObject interface {
	VisitGetPolicyResponse(w http.ResponseWriter) error
}

type GetPolicy200JSONResponse Policy

func (response GetPolicy200JSONResponse) VisitGetPolicyResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type GetPolicy404JSONResponse ErrorMessage

func (response GetPolicy404JSONResponse) VisitGetPolicyResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type ListPolicyFilesRequestObject struct {
}

type ListPolicyFilesResponseObject interface {
	VisitListPolicyFilesResponse(w http.ResponseWriter) error
}

type ListPolicyFiles200JSONResponse []PolicyFile

func (response ListPolicyFiles200JSONResponse) VisitListPolicyFilesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type ListSelectorsRequestObject struct {
}

type ListSelectorsResponseObject interface {
	VisitListSelectorsResponse(w http.ResponseWriter) error
}

type ListSelectors200JSONResponse []SelectorIdentityMapping

func (response ListSelectors200JSONResponse) VisitListSelectorsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type ListSubjectSelectorsRequestObject struct {
}

type ListSubjectSelectorsResponseObject interface {
	VisitListSubjectSelectorsResponse(w http.ResponseWriter) error
}

type ListSubjectSelectors200JSONResponse []SelectorIdentityMapping

func (response ListSubjectSelectors200JSONResponse) VisitListSubjectSelectorsResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type TracePolicyRequestObject struct {
	Params TracePolicyParams
}

type TracePolicyResponseObject interface {
	VisitTracePolicyResponse(w http.ResponseWriter) error
}

type TracePolicy200JSONResponse PolicyTrace

func (response TracePolicy200JSONResponse) VisitTracePolicyResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

type TracePolicy400JSONResponse ErrorMessage

func (response TracePolicy400JSONResponse) VisitTracePolicyResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(400)
	_, err := buf.WriteTo(w)
	return err
}

type TracePolicy404JSONResponse ErrorMessage

func (response TracePolicy404JSONResponse) VisitTracePolicyResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(404)
	_, err := buf.WriteTo(w)
	return err
}

type DeletePrefilterRequestObject struct {
}

type DeletePrefilterResponseObject interface {
	VisitDeletePrefilterResponse(w http.ResponseWriter) error
}

type DeletePrefilter500JSONResponse ErrorMessage

func (response DeletePrefilter500JSONResponse) VisitDeletePrefilterResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type GetPrefilterRequestObject struct {
}

type GetPrefilterResponseObject interface {
	VisitGetPrefilterResponse(w http.ResponseWriter) error
}

type GetPrefilter500JSONResponse ErrorMessage

func (response GetPrefilter500JSONResponse) VisitGetPrefilterResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type PatchPrefilterRequestObject struct {
}

type PatchPrefilterResponseObject interface {
	VisitPatchPrefilterResponse(w http.ResponseWriter) error
}

type PatchPrefilter500JSONResponse ErrorMessage

func (response PatchPrefilter500JSONResponse) VisitPatchPrefilterResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(500)
	_, err := buf.WriteTo(w)
	return err
}

type ListServicesRequestObject struct {
}

type ListServicesResponseObject interface {
	VisitListServicesResponse(w http.ResponseWriter) error
}

type ListServices200JSONResponse []Service

func (response ListServices200JSONResponse) VisitListServicesResponse(w http.ResponseWriter) error {

	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(response); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_, err := buf.WriteTo(w)
	return err
}

// StrictServerInterface represents all server handlers.
type StrictServerInterface interface {
	// ListBGPPeers Peers of BGP, which is not supported
	// (GET /bgp/peers)
	ListBGPPeers(ctx context.Context, request ListBGPPeersRequestObject) (ListBGPPeersResponseObject, error)
	// ListBGPRoutePolicies Policies of BGP, which is not supported
	// (GET /bgp/route-policies)
	ListBGPRoutePolicies(ctx context.Context, request ListBGPRoutePoliciesRequestObject) (ListBGPRoutePoliciesResponseObject, error)
	// ListBGPRoutes Routes of BGP, which is not supported
	// (GET /bgp/routes)
	ListBGPRoutes(ctx context.Context, request ListBGPRoutesRequestObject) (ListBGPRoutesResponseObject, error)
	// GetCgroupMetadata Cgroups of pods, which nothing here needs; the list is empty
	// (GET /cgroup-dump-metadata)
	GetCgroupMetadata(ctx context.Context, request GetCgroupMetadataRequestObject) (GetCgroupMetadataResponseObject, error)
	// GetClusterHealth Hawser: which nodes this one reaches, and since when it does not
	// (GET /cluster/health)
	GetClusterHealth(ctx context.Context, request GetClusterHealthRequestObject) (GetClusterHealthResponseObject, error)
	// GetClusterNodes List the nodes, or what changed since this client asked last
	// (GET /cluster/nodes)
	GetClusterNodes(ctx context.Context, request GetClusterNodesRequestObject) (GetClusterNodesResponseObject, error)
	// GetConfig Configuration in force and facts a CNI plugin needs
	// (GET /config)
	GetConfig(ctx context.Context, request GetConfigRequestObject) (GetConfigResponseObject, error)
	// PatchConfig Change options that can change at run time
	// (PATCH /config)
	PatchConfig(ctx context.Context, request PatchConfigRequestObject) (PatchConfigResponseObject, error)
	// GetDebugInfo The state of the agent for a bug report, without secrets
	// (GET /debuginfo)
	GetDebugInfo(ctx context.Context, request GetDebugInfoRequestObject) (GetDebugInfoResponseObject, error)
	// DeleteEndpoints Delete all endpoints of a container
	// (DELETE /endpoint)
	DeleteEndpoints(ctx context.Context, request DeleteEndpointsRequestObject) (DeleteEndpointsResponseObject, error)
	// ListEndpoints List the endpoints of this node
	// (GET /endpoint)
	ListEndpoints(ctx context.Context, request ListEndpointsRequestObject) (ListEndpointsResponseObject, error)
	// DeleteEndpoint Delete an endpoint
	// (DELETE /endpoint/{id})
	DeleteEndpoint(ctx context.Context, request DeleteEndpointRequestObject) (DeleteEndpointResponseObject, error)
	// GetEndpoint Get an endpoint
	// (GET /endpoint/{id})
	GetEndpoint(ctx context.Context, request GetEndpointRequestObject) (GetEndpointResponseObject, error)
	// PatchEndpoint Change an endpoint
	// (PATCH /endpoint/{id})
	PatchEndpoint(ctx context.Context, request PatchEndpointRequestObject) (PatchEndpointResponseObject, error)
	// CreateEndpoint Create an endpoint
	// (PUT /endpoint/{id})
	CreateEndpoint(ctx context.Context, request CreateEndpointRequestObject) (CreateEndpointResponseObject, error)
	// GetEndpointConfig Get an endpoint's options
	// (GET /endpoint/{id}/config)
	GetEndpointConfig(ctx context.Context, request GetEndpointConfigRequestObject) (GetEndpointConfigResponseObject, error)
	// PatchEndpointConfig Change an endpoint's options
	// (PATCH /endpoint/{id}/config)
	PatchEndpointConfig(ctx context.Context, request PatchEndpointConfigRequestObject) (PatchEndpointConfigResponseObject, error)
	// GetEndpointHealth Get an endpoint's health
	// (GET /endpoint/{id}/healthz)
	GetEndpointHealth(ctx context.Context, request GetEndpointHealthRequestObject) (GetEndpointHealthResponseObject, error)
	// GetEndpointLabels Get an endpoint's labels
	// (GET /endpoint/{id}/labels)
	GetEndpointLabels(ctx context.Context, request GetEndpointLabelsRequestObject) (GetEndpointLabelsResponseObject, error)
	// PatchEndpointLabels Replace an endpoint's user labels
	// (PATCH /endpoint/{id}/labels)
	PatchEndpointLabels(ctx context.Context, request PatchEndpointLabelsRequestObject) (PatchEndpointLabelsResponseObject, error)
	// GetEndpointLog Get what happened to an endpoint, newest first; also to one of the last that are gone
	// (GET /endpoint/{id}/log)
	GetEndpointLog(ctx context.Context, request GetEndpointLogRequestObject) (GetEndpointLogResponseObject, error)
	// DeleteFQDNs Forget names that pods have looked up; there are none
	// (DELETE /fqdn/cache)
	DeleteFQDNs(ctx context.Context, request DeleteFQDNsRequestObject) (DeleteFQDNsResponseObject, error)
	// ListFQDNs Names that pods have looked up; there is no proxy that sees them
	// (GET /fqdn/cache)
	ListFQDNs(ctx context.Context, request ListFQDNsRequestObject) (ListFQDNsResponseObject, error)
	// ListEndpointFQDNs Names that an endpoint has looked up; there is no proxy that sees them
	// (GET /fqdn/cache/{id})
	ListEndpointFQDNs(ctx context.Context, request ListEndpointFQDNsRequestObject) (ListEndpointFQDNsResponseObject, error)
	// GetFQDNNames Selectors of names, which policies here cannot have
	// (GET /fqdn/names)
	GetFQDNNames(ctx context.Context, request GetFQDNNamesRequestObject) (GetFQDNNamesResponseObject, error)
	// GetHealthz Health of the agent and of its parts
	// (GET /healthz)
	GetHealthz(ctx context.Context, request GetHealthzRequestObject) (GetHealthzResponseObject, error)
	// ListIdentities List the identities this node knows
	// (GET /identity)
	ListIdentities(ctx context.Context, request ListIdentitiesRequestObject) (ListIdentitiesResponseObject, error)
	// ListIdentityEndpoints List the identities local endpoints use, with how many use each
	// (GET /identity/endpoints)
	ListIdentityEndpoints(ctx context.Context, request ListIdentityEndpointsRequestObject) (ListIdentityEndpointsResponseObject, error)
	// GetIdentity Get an identity by its number
	// (GET /identity/{id})
	GetIdentity(ctx context.Context, request GetIdentityRequestObject) (GetIdentityResponseObject, error)
	// ListIPs List addresses with their identities
	// (GET /ip)
	ListIPs(ctx context.Context, request ListIPsRequestObject) (ListIPsResponseObject, error)
	// AllocateIP Allocate an address of each enabled family, or of one
	// (POST /ipam)
	AllocateIP(ctx context.Context, request AllocateIPRequestObject) (AllocateIPResponseObject, error)
	// ReleaseIP Release one address
	// (DELETE /ipam/{ip})
	ReleaseIP(ctx context.Context, request ReleaseIPRequestObject) (ReleaseIPResponseObject, error)
	// ReserveIP Reserve one address
	// (POST /ipam/{ip})
	ReserveIP(ctx context.Context, request ReserveIPRequestObject) (ReserveIPResponseObject, error)
	// ListLRPs Local redirect policies, which are not supported; the list is empty
	// (GET /lrp)
	ListLRPs(ctx context.Context, request ListLRPsRequestObject) (ListLRPsResponseObject, error)
	// ListMaps List the kernel maps
	// (GET /map)
	ListMaps(ctx context.Context, request ListMapsRequestObject) (ListMapsResponseObject, error)
	// GetMap Get the content of a kernel map
	// (GET /map/{name})
	GetMap(ctx context.Context, request GetMapRequestObject) (GetMapResponseObject, error)
	// ListMapEvents Changes of a kernel map; none are kept
	// (GET /map/{name}/events)
	ListMapEvents(ctx context.Context, request ListMapEventsRequestObject) (ListMapEventsResponseObject, error)
	// ListMetrics The values of all metrics now
	// (GET /metrics)
	ListMetrics(ctx context.Context, request ListMetricsRequestObject) (ListMetricsResponseObject, error)
	// Monitor Hawser: stream datapath events as JSON lines until the client closes
	// (GET /monitor)
	Monitor(ctx context.Context, request MonitorRequestObject) (MonitorResponseObject, error)
	// ListNodeIDs List the numbers this node gave to nodes
	// (GET /node/ids)
	ListNodeIDs(ctx context.Context, request ListNodeIDsRequestObject) (ListNodeIDsResponseObject, error)
	// GetPolicy Get all rules in force
	// (GET /policy)
	GetPolicy(ctx context.Context, request GetPolicyRequestObject) (GetPolicyResponseObject, error)
	// ListPolicyFiles Hawser: list the files of the static policy directory and the policies of Kubernetes
	// (GET /policy/files)
	ListPolicyFiles(ctx context.Context, request ListPolicyFilesRequestObject) (ListPolicyFilesResponseObject, error)
	// ListSelectors List the peer selectors in use and the identities each selects
	// (GET /policy/selectors)
	ListSelectors(ctx context.Context, request ListSelectorsRequestObject) (ListSelectorsResponseObject, error)
	// ListSubjectSelectors List the subject selectors in use and the identities each selects
	// (GET /policy/subject-selectors)
	ListSubjectSelectors(ctx context.Context, request ListSubjectSelectorsRequestObject) (ListSubjectSelectorsResponseObject, error)
	// TracePolicy Hawser: explain why one side would reach the other, rule by rule
	// (GET /policy/trace)
	TracePolicy(ctx context.Context, request TracePolicyRequestObject) (TracePolicyResponseObject, error)
	// DeletePrefilter Remove prefixes to filter; there is no such filter
	// (DELETE /prefilter)
	DeletePrefilter(ctx context.Context, request DeletePrefilterRequestObject) (DeletePrefilterResponseObject, error)
	// GetPrefilter Prefixes that are filtered before all else; there is no such filter
	// (GET /prefilter)
	GetPrefilter(ctx context.Context, request GetPrefilterRequestObject) (GetPrefilterResponseObject, error)
	// PatchPrefilter Add prefixes to filter; there is no such filter
	// (PATCH /prefilter)
	PatchPrefilter(ctx context.Context, request PatchPrefilterRequestObject) (PatchPrefilterResponseObject, error)
	// ListServices List the frontends of services and where they lead
	// (GET /service)
	ListServices(ctx context.Context, request ListServicesRequestObject) (ListServicesResponseObject, error)
}

type StrictHandlerFunc func(ctx context.Context, w http.ResponseWriter, r *http.Request, request any) (any, error)
type StrictMiddlewareFunc func(f StrictHandlerFunc, operationID string) StrictHandlerFunc

type StrictHTTPServerOptions struct {
	RequestErrorHandlerFunc  func(w http.ResponseWriter, r *http.Request, err error)
	ResponseErrorHandlerFunc func(w http.ResponseWriter, r *http.Request, err error)
}

func NewStrictHandler(ssi StrictServerInterface, middlewares []StrictMiddlewareFunc) ServerInterface {
	return &strictHandler{ssi: ssi, middlewares: middlewares, options: StrictHTTPServerOptions{
		RequestErrorHandlerFunc: func(w http.ResponseWriter, r *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadRequest)
		},
		ResponseErrorHandlerFunc: func(w http.ResponseWriter, r *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		},
	}}
}

func NewStrictHandlerWithOptions(ssi StrictServerInterface, middlewares []StrictMiddlewareFunc, options StrictHTTPServerOptions) ServerInterface {
	if options.RequestErrorHandlerFunc == nil {
		options.RequestErrorHandlerFunc = func(w http.ResponseWriter, r *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}
	if options.ResponseErrorHandlerFunc == nil {
		options.ResponseErrorHandlerFunc = func(w http.ResponseWriter, r *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
	return &strictHandler{ssi: ssi, middlewares: middlewares, options: options}
}

type strictHandler struct {
	ssi         StrictServerInterface
	middlewares []StrictMiddlewareFunc
	options     StrictHTTPServerOptions
}

// ListBGPPeers operation middleware
func (sh *strictHandler) ListBGPPeers(w http.ResponseWriter, r *http.Request) {
	var request ListBGPPeersRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListBGPPeers(ctx, request.(ListBGPPeersRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListBGPPeers")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListBGPPeersResponseObject); ok {
		if err := validResponse.VisitListBGPPeersResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListBGPRoutePolicies operation middleware
func (sh *strictHandler) ListBGPRoutePolicies(w http.ResponseWriter, r *http.Request) {
	var request ListBGPRoutePoliciesRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListBGPRoutePolicies(ctx, request.(ListBGPRoutePoliciesRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListBGPRoutePolicies")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListBGPRoutePoliciesResponseObject); ok {
		if err := validResponse.VisitListBGPRoutePoliciesResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListBGPRoutes operation middleware
func (sh *strictHandler) ListBGPRoutes(w http.ResponseWriter, r *http.Request) {
	var request ListBGPRoutesRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListBGPRoutes(ctx, request.(ListBGPRoutesRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListBGPRoutes")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListBGPRoutesResponseObject); ok {
		if err := validResponse.VisitListBGPRoutesResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetCgroupMetadata operation middleware
func (sh *strictHandler) GetCgroupMetadata(w http.ResponseWriter, r *http.Request) {
	var request GetCgroupMetadataRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetCgroupMetadata(ctx, request.(GetCgroupMetadataRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetCgroupMetadata")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetCgroupMetadataResponseObject); ok {
		if err := validResponse.VisitGetCgroupMetadataResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetClusterHealth operation middleware
func (sh *strictHandler) GetClusterHealth(w http.ResponseWriter, r *http.Request) {
	var request GetClusterHealthRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetClusterHealth(ctx, request.(GetClusterHealthRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetClusterHealth")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetClusterHealthResponseObject); ok {
		if err := validResponse.VisitGetClusterHealthResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetClusterNodes operation middleware
func (sh *strictHandler) GetClusterNodes(w http.ResponseWriter, r *http.Request, params GetClusterNodesParams) {
	var request GetClusterNodesRequestObject

	request.Params = params

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetClusterNodes(ctx, request.(GetClusterNodesRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetClusterNodes")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetClusterNodesResponseObject); ok {
		if err := validResponse.VisitGetClusterNodesResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetConfig operation middleware
func (sh *strictHandler) GetConfig(w http.ResponseWriter, r *http.Request) {
	var request GetConfigRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetConfig(ctx, request.(GetConfigRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetConfig")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetConfigResponseObject); ok {
		if err := validResponse.VisitGetConfigResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// PatchConfig operation middleware
func (sh *strictHandler) PatchConfig(w http.ResponseWriter, r *http.Request) {
	var request PatchConfigRequestObject

	var body PatchConfigJSONRequestBody
	if err := runtime.BindJSONBody(r, &body); err != nil {
		sh.options.RequestErrorHandlerFunc(w, r, fmt.Errorf("can't decode JSON body: %w", err))
		return
	}
	request.Body = &body

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.PatchConfig(ctx, request.(PatchConfigRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "PatchConfig")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(PatchConfigResponseObject); ok {
		if err := validResponse.VisitPatchConfigResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetDebugInfo operation middleware
func (sh *strictHandler) GetDebugInfo(w http.ResponseWriter, r *http.Request) {
	var request GetDebugInfoRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetDebugInfo(ctx, request.(GetDebugInfoRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetDebugInfo")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetDebugInfoResponseObject); ok {
		if err := validResponse.VisitGetDebugInfoResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// DeleteEndpoints operation middleware
func (sh *strictHandler) DeleteEndpoints(w http.ResponseWriter, r *http.Request) {
	var request DeleteEndpointsRequestObject

	var body DeleteEndpointsJSONRequestBody
	if err := runtime.BindJSONBody(r, &body); err != nil {
		sh.options.RequestErrorHandlerFunc(w, r, fmt.Errorf("can't decode JSON body: %w", err))
		return
	}
	request.Body = &body

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.DeleteEndpoints(ctx, request.(DeleteEndpointsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "DeleteEndpoints")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(DeleteEndpointsResponseObject); ok {
		if err := validResponse.VisitDeleteEndpointsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListEndpoints operation middleware
func (sh *strictHandler) ListEndpoints(w http.ResponseWriter, r *http.Request) {
	var request ListEndpointsRequestObject

	var body ListEndpointsJSONRequestBody
	if err := runtime.BindJSONBody(r, &body); err != nil {
		if !errors.Is(err, io.EOF) {
			sh.options.RequestErrorHandlerFunc(w, r, fmt.Errorf("can't decode JSON body: %w", err))
			return
		}
	} else {
		request.Body = &body
	}

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListEndpoints(ctx, request.(ListEndpointsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListEndpoints")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListEndpointsResponseObject); ok {
		if err := validResponse.VisitListEndpointsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// DeleteEndpoint operation middleware
func (sh *strictHandler) DeleteEndpoint(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request DeleteEndpointRequestObject

	request.ID = id

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.DeleteEndpoint(ctx, request.(DeleteEndpointRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "DeleteEndpoint")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(DeleteEndpointResponseObject); ok {
		if err := validResponse.VisitDeleteEndpointResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetEndpoint operation middleware
func (sh *strictHandler) GetEndpoint(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request GetEndpointRequestObject

	request.ID = id

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetEndpoint(ctx, request.(GetEndpointRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetEndpoint")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetEndpointResponseObject); ok {
		if err := validResponse.VisitGetEndpointResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// PatchEndpoint operation middleware
func (sh *strictHandler) PatchEndpoint(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request PatchEndpointRequestObject

	request.ID = id

	var body PatchEndpointJSONRequestBody
	if err := runtime.BindJSONBody(r, &body); err != nil {
		sh.options.RequestErrorHandlerFunc(w, r, fmt.Errorf("can't decode JSON body: %w", err))
		return
	}
	request.Body = &body

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.PatchEndpoint(ctx, request.(PatchEndpointRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "PatchEndpoint")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(PatchEndpointResponseObject); ok {
		if err := validResponse.VisitPatchEndpointResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// CreateEndpoint operation middleware
func (sh *strictHandler) CreateEndpoint(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request CreateEndpointRequestObject

	request.ID = id

	var body CreateEndpointJSONRequestBody
	if err := runtime.BindJSONBody(r, &body); err != nil {
		sh.options.RequestErrorHandlerFunc(w, r, fmt.Errorf("can't decode JSON body: %w", err))
		return
	}
	request.Body = &body

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.CreateEndpoint(ctx, request.(CreateEndpointRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "CreateEndpoint")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(CreateEndpointResponseObject); ok {
		if err := validResponse.VisitCreateEndpointResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetEndpointConfig operation middleware
func (sh *strictHandler) GetEndpointConfig(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request GetEndpointConfigRequestObject

	request.ID = id

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetEndpointConfig(ctx, request.(GetEndpointConfigRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetEndpointConfig")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetEndpointConfigResponseObject); ok {
		if err := validResponse.VisitGetEndpointConfigResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// PatchEndpointConfig operation middleware
func (sh *strictHandler) PatchEndpointConfig(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request PatchEndpointConfigRequestObject

	request.ID = id

	var body PatchEndpointConfigJSONRequestBody
	if err := runtime.BindJSONBody(r, &body); err != nil {
		sh.options.RequestErrorHandlerFunc(w, r, fmt.Errorf("can't decode JSON body: %w", err))
		return
	}
	request.Body = &body

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.PatchEndpointConfig(ctx, request.(PatchEndpointConfigRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "PatchEndpointConfig")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(PatchEndpointConfigResponseObject); ok {
		if err := validResponse.VisitPatchEndpointConfigResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetEndpointHealth operation middleware
func (sh *strictHandler) GetEndpointHealth(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request GetEndpointHealthRequestObject

	request.ID = id

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetEndpointHealth(ctx, request.(GetEndpointHealthRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetEndpointHealth")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetEndpointHealthResponseObject); ok {
		if err := validResponse.VisitGetEndpointHealthResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetEndpointLabels operation middleware
func (sh *strictHandler) GetEndpointLabels(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request GetEndpointLabelsRequestObject

	request.ID = id

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetEndpointLabels(ctx, request.(GetEndpointLabelsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetEndpointLabels")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetEndpointLabelsResponseObject); ok {
		if err := validResponse.VisitGetEndpointLabelsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// PatchEndpointLabels operation middleware
func (sh *strictHandler) PatchEndpointLabels(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request PatchEndpointLabelsRequestObject

	request.ID = id

	var body PatchEndpointLabelsJSONRequestBody
	if err := runtime.BindJSONBody(r, &body); err != nil {
		sh.options.RequestErrorHandlerFunc(w, r, fmt.Errorf("can't decode JSON body: %w", err))
		return
	}
	request.Body = &body

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.PatchEndpointLabels(ctx, request.(PatchEndpointLabelsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "PatchEndpointLabels")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(PatchEndpointLabelsResponseObject); ok {
		if err := validResponse.VisitPatchEndpointLabelsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetEndpointLog operation middleware
func (sh *strictHandler) GetEndpointLog(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request GetEndpointLogRequestObject

	request.ID = id

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetEndpointLog(ctx, request.(GetEndpointLogRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetEndpointLog")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetEndpointLogResponseObject); ok {
		if err := validResponse.VisitGetEndpointLogResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// DeleteFQDNs operation middleware
func (sh *strictHandler) DeleteFQDNs(w http.ResponseWriter, r *http.Request) {
	var request DeleteFQDNsRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.DeleteFQDNs(ctx, request.(DeleteFQDNsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "DeleteFQDNs")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(DeleteFQDNsResponseObject); ok {
		if err := validResponse.VisitDeleteFQDNsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListFQDNs operation middleware
func (sh *strictHandler) ListFQDNs(w http.ResponseWriter, r *http.Request) {
	var request ListFQDNsRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListFQDNs(ctx, request.(ListFQDNsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListFQDNs")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListFQDNsResponseObject); ok {
		if err := validResponse.VisitListFQDNsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListEndpointFQDNs operation middleware
func (sh *strictHandler) ListEndpointFQDNs(w http.ResponseWriter, r *http.Request, id EndpointID) {
	var request ListEndpointFQDNsRequestObject

	request.ID = id

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListEndpointFQDNs(ctx, request.(ListEndpointFQDNsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListEndpointFQDNs")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListEndpointFQDNsResponseObject); ok {
		if err := validResponse.VisitListEndpointFQDNsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetFQDNNames operation middleware
func (sh *strictHandler) GetFQDNNames(w http.ResponseWriter, r *http.Request) {
	var request GetFQDNNamesRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetFQDNNames(ctx, request.(GetFQDNNamesRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetFQDNNames")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetFQDNNamesResponseObject); ok {
		if err := validResponse.VisitGetFQDNNamesResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetHealthz operation middleware
func (sh *strictHandler) GetHealthz(w http.ResponseWriter, r *http.Request, params GetHealthzParams) {
	var request GetHealthzRequestObject

	request.Params = params

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetHealthz(ctx, request.(GetHealthzRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetHealthz")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetHealthzResponseObject); ok {
		if err := validResponse.VisitGetHealthzResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListIdentities operation middleware
func (sh *strictHandler) ListIdentities(w http.ResponseWriter, r *http.Request) {
	var request ListIdentitiesRequestObject

	var body ListIdentitiesJSONRequestBody
	if err := runtime.BindJSONBody(r, &body); err != nil {
		if !errors.Is(err, io.EOF) {
			sh.options.RequestErrorHandlerFunc(w, r, fmt.Errorf("can't decode JSON body: %w", err))
			return
		}
	} else {
		request.Body = &body
	}

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListIdentities(ctx, request.(ListIdentitiesRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListIdentities")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListIdentitiesResponseObject); ok {
		if err := validResponse.VisitListIdentitiesResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListIdentityEndpoints operation middleware
func (sh *strictHandler) ListIdentityEndpoints(w http.ResponseWriter, r *http.Request) {
	var request ListIdentityEndpointsRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListIdentityEndpoints(ctx, request.(ListIdentityEndpointsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListIdentityEndpoints")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListIdentityEndpointsResponseObject); ok {
		if err := validResponse.VisitListIdentityEndpointsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetIdentity operation middleware
func (sh *strictHandler) GetIdentity(w http.ResponseWriter, r *http.Request, id string) {
	var request GetIdentityRequestObject

	request.ID = id

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetIdentity(ctx, request.(GetIdentityRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetIdentity")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetIdentityResponseObject); ok {
		if err := validResponse.VisitGetIdentityResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListIPs operation middleware
func (sh *strictHandler) ListIPs(w http.ResponseWriter, r *http.Request, params ListIPsParams) {
	var request ListIPsRequestObject

	request.Params = params

	var body ListIPsJSONRequestBody
	if err := runtime.BindJSONBody(r, &body); err != nil {
		if !errors.Is(err, io.EOF) {
			sh.options.RequestErrorHandlerFunc(w, r, fmt.Errorf("can't decode JSON body: %w", err))
			return
		}
	} else {
		request.Body = &body
	}

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListIPs(ctx, request.(ListIPsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListIPs")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListIPsResponseObject); ok {
		if err := validResponse.VisitListIPsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// AllocateIP operation middleware
func (sh *strictHandler) AllocateIP(w http.ResponseWriter, r *http.Request, params AllocateIPParams) {
	var request AllocateIPRequestObject

	request.Params = params

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.AllocateIP(ctx, request.(AllocateIPRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "AllocateIP")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(AllocateIPResponseObject); ok {
		if err := validResponse.VisitAllocateIPResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ReleaseIP operation middleware
func (sh *strictHandler) ReleaseIP(w http.ResponseWriter, r *http.Request, ip string, params ReleaseIPParams) {
	var request ReleaseIPRequestObject

	request.IP = ip
	request.Params = params

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ReleaseIP(ctx, request.(ReleaseIPRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ReleaseIP")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ReleaseIPResponseObject); ok {
		if err := validResponse.VisitReleaseIPResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ReserveIP operation middleware
func (sh *strictHandler) ReserveIP(w http.ResponseWriter, r *http.Request, ip string, params ReserveIPParams) {
	var request ReserveIPRequestObject

	request.IP = ip
	request.Params = params

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ReserveIP(ctx, request.(ReserveIPRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ReserveIP")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ReserveIPResponseObject); ok {
		if err := validResponse.VisitReserveIPResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListLRPs operation middleware
func (sh *strictHandler) ListLRPs(w http.ResponseWriter, r *http.Request) {
	var request ListLRPsRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListLRPs(ctx, request.(ListLRPsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListLRPs")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListLRPsResponseObject); ok {
		if err := validResponse.VisitListLRPsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListMaps operation middleware
func (sh *strictHandler) ListMaps(w http.ResponseWriter, r *http.Request) {
	var request ListMapsRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListMaps(ctx, request.(ListMapsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListMaps")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListMapsResponseObject); ok {
		if err := validResponse.VisitListMapsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetMap operation middleware
func (sh *strictHandler) GetMap(w http.ResponseWriter, r *http.Request, name string) {
	var request GetMapRequestObject

	request.Name = name

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetMap(ctx, request.(GetMapRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetMap")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetMapResponseObject); ok {
		if err := validResponse.VisitGetMapResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListMapEvents operation middleware
func (sh *strictHandler) ListMapEvents(w http.ResponseWriter, r *http.Request, name string) {
	var request ListMapEventsRequestObject

	request.Name = name

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListMapEvents(ctx, request.(ListMapEventsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListMapEvents")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListMapEventsResponseObject); ok {
		if err := validResponse.VisitListMapEventsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListMetrics operation middleware
func (sh *strictHandler) ListMetrics(w http.ResponseWriter, r *http.Request) {
	var request ListMetricsRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListMetrics(ctx, request.(ListMetricsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListMetrics")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListMetricsResponseObject); ok {
		if err := validResponse.VisitListMetricsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// Monitor operation middleware
func (sh *strictHandler) Monitor(w http.ResponseWriter, r *http.Request, params MonitorParams) {
	var request MonitorRequestObject

	request.Params = params

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.Monitor(ctx, request.(MonitorRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "Monitor")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(MonitorResponseObject); ok {
		if err := validResponse.VisitMonitorResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListNodeIDs operation middleware
func (sh *strictHandler) ListNodeIDs(w http.ResponseWriter, r *http.Request) {
	var request ListNodeIDsRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListNodeIDs(ctx, request.(ListNodeIDsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListNodeIDs")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListNodeIDsResponseObject); ok {
		if err := validResponse.VisitListNodeIDsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetPolicy operation middleware
func (sh *strictHandler) GetPolicy(w http.ResponseWriter, r *http.Request) {
	var request GetPolicyRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetPolicy(ctx, request.(GetPolicyRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetPolicy")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetPolicyResponseObject); ok {
		if err := validResponse.VisitGetPolicyResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListPolicyFiles operation middleware
func (sh *strictHandler) ListPolicyFiles(w http.ResponseWriter, r *http.Request) {
	var request ListPolicyFilesRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListPolicyFiles(ctx, request.(ListPolicyFilesRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListPolicyFiles")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListPolicyFilesResponseObject); ok {
		if err := validResponse.VisitListPolicyFilesResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListSelectors operation middleware
func (sh *strictHandler) ListSelectors(w http.ResponseWriter, r *http.Request) {
	var request ListSelectorsRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListSelectors(ctx, request.(ListSelectorsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListSelectors")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListSelectorsResponseObject); ok {
		if err := validResponse.VisitListSelectorsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListSubjectSelectors operation middleware
func (sh *strictHandler) ListSubjectSelectors(w http.ResponseWriter, r *http.Request) {
	var request ListSubjectSelectorsRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListSubjectSelectors(ctx, request.(ListSubjectSelectorsRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListSubjectSelectors")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListSubjectSelectorsResponseObject); ok {
		if err := validResponse.VisitListSubjectSelectorsResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// TracePolicy operation middleware
func (sh *strictHandler) TracePolicy(w http.ResponseWriter, r *http.Request, params TracePolicyParams) {
	var request TracePolicyRequestObject

	request.Params = params

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.TracePolicy(ctx, request.(TracePolicyRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "TracePolicy")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(TracePolicyResponseObject); ok {
		if err := validResponse.VisitTracePolicyResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// DeletePrefilter operation middleware
func (sh *strictHandler) DeletePrefilter(w http.ResponseWriter, r *http.Request) {
	var request DeletePrefilterRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.DeletePrefilter(ctx, request.(DeletePrefilterRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "DeletePrefilter")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(DeletePrefilterResponseObject); ok {
		if err := validResponse.VisitDeletePrefilterResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// GetPrefilter operation middleware
func (sh *strictHandler) GetPrefilter(w http.ResponseWriter, r *http.Request) {
	var request GetPrefilterRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.GetPrefilter(ctx, request.(GetPrefilterRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "GetPrefilter")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(GetPrefilterResponseObject); ok {
		if err := validResponse.VisitGetPrefilterResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// PatchPrefilter operation middleware
func (sh *strictHandler) PatchPrefilter(w http.ResponseWriter, r *http.Request) {
	var request PatchPrefilterRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.PatchPrefilter(ctx, request.(PatchPrefilterRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "PatchPrefilter")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(PatchPrefilterResponseObject); ok {
		if err := validResponse.VisitPatchPrefilterResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}

// ListServices operation middleware
func (sh *strictHandler) ListServices(w http.ResponseWriter, r *http.Request) {
	var request ListServicesRequestObject

	handler := func(ctx context.Context, w http.ResponseWriter, r *http.Request, request interface{}) (interface{}, error) {
		return sh.ssi.ListServices(ctx, request.(ListServicesRequestObject))
	}
	for _, middleware := range sh.middlewares {
		handler = middleware(handler, "ListServices")
	}

	response, err := handler(r.Context(), w, r, request)

	if err != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, err)
	} else if validResponse, ok := response.(ListServicesResponseObject); ok {
		if err := validResponse.VisitListServicesResponse(w); err != nil {
			sh.options.ResponseErrorHandlerFunc(w, r, err)
		}
	} else if response != nil {
		sh.options.ResponseErrorHandlerFunc(w, r, fmt.Errorf("unexpected response type: %T", response))
	}
}
