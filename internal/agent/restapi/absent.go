package restapi

import (
	"context"
	"net/http"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
)

// Existing clients of the API ask for features that are not there. They are answered as by an agent
// in which these are off, and so go on with what they do.

// modeDisabled is the mode of a feature that is off.
const modeDisabled = "Disabled"

// ListLRPs is GET /lrp.
func (a *API) ListLRPs(context.Context, server.ListLRPsRequestObject) (server.ListLRPsResponseObject, error) {
	return server.ListLRPs200JSONResponse{}, nil
}

// GetCgroupMetadata is GET /cgroup-dump-metadata.
func (a *API) GetCgroupMetadata(context.Context, server.GetCgroupMetadataRequestObject) (server.GetCgroupMetadataResponseObject, error) {
	return server.GetCgroupMetadata200JSONResponse{}, nil
}

// ListMapEvents is GET /map/{name}/events.
func (a *API) ListMapEvents(_ context.Context, req server.ListMapEventsRequestObject) (server.ListMapEventsResponseObject, error) {
	return nil, server.Errorf(http.StatusNotFound, "no changes of map %s are kept; read it with GET /map/%s", req.Name, req.Name)
}

// ListFQDNs is GET /fqdn/cache.
func (a *API) ListFQDNs(context.Context, server.ListFQDNsRequestObject) (server.ListFQDNsResponseObject, error) {
	return nil, errNoNames()
}

// DeleteFQDNs is DELETE /fqdn/cache.
func (a *API) DeleteFQDNs(context.Context, server.DeleteFQDNsRequestObject) (server.DeleteFQDNsResponseObject, error) {
	return server.DeleteFQDNs200Response{}, nil
}

// ListEndpointFQDNs is GET /fqdn/cache/{id}.
func (a *API) ListEndpointFQDNs(context.Context, server.ListEndpointFQDNsRequestObject) (server.ListEndpointFQDNsResponseObject, error) {
	return nil, errNoNames()
}

func errNoNames() error {
	return server.Errorf(http.StatusNotFound, "no name is known: nothing here reads what pods look up")
}

// GetFQDNNames is GET /fqdn/names.
func (a *API) GetFQDNNames(context.Context, server.GetFQDNNamesRequestObject) (server.GetFQDNNamesResponseObject, error) {
	return server.GetFQDNNames200JSONResponse(rest.NameManager{}), nil
}

// GetPrefilter is GET /prefilter.
func (a *API) GetPrefilter(context.Context, server.GetPrefilterRequestObject) (server.GetPrefilterResponseObject, error) {
	return server.GetPrefilter500JSONResponse(noPrefilter), nil
}

// PatchPrefilter is PATCH /prefilter.
func (a *API) PatchPrefilter(context.Context, server.PatchPrefilterRequestObject) (server.PatchPrefilterResponseObject, error) {
	return server.PatchPrefilter500JSONResponse(noPrefilter), nil
}

// DeletePrefilter is DELETE /prefilter.
func (a *API) DeletePrefilter(context.Context, server.DeletePrefilterRequestObject) (server.DeletePrefilterResponseObject, error) {
	return server.DeletePrefilter500JSONResponse(noPrefilter), nil
}

// noPrefilter is what an agent answers whose prefilter is off, with status 500. It is no fault,
// which would be logged.
const noPrefilter = "there is no prefilter: deny the prefixes in a policy"

// ListBGPPeers is GET /bgp/peers.
func (a *API) ListBGPPeers(context.Context, server.ListBGPPeersRequestObject) (server.ListBGPPeersResponseObject, error) {
	return nil, errNoBGP()
}

// ListBGPRoutes is GET /bgp/routes.
func (a *API) ListBGPRoutes(context.Context, server.ListBGPRoutesRequestObject) (server.ListBGPRoutesResponseObject, error) {
	return nil, errNoBGP()
}

// ListBGPRoutePolicies is GET /bgp/route-policies.
func (a *API) ListBGPRoutePolicies(context.Context, server.ListBGPRoutePoliciesRequestObject) (server.ListBGPRoutePoliciesResponseObject, error) {
	return nil, errNoBGP()
}

func errNoBGP() error { return server.Errorf(http.StatusNotImplemented, "BGP is not supported") }
