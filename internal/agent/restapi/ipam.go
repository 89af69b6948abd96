package restapi

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/ipam"
)

// ipamError gives an error of the address pool its code; other is that of faults without one of
// their own.
func ipamError(err error, other int) error {
	code := other
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ipam.ErrInvalid):
		code = http.StatusBadRequest
	case errors.Is(err, ipam.ErrNotFound):
		code = http.StatusNotFound
	case errors.Is(err, ipam.ErrExists):
		code = http.StatusConflict
	case errors.Is(err, ipam.ErrDisabled):
		code = http.StatusNotImplemented
	case errors.Is(err, ipam.ErrNotOpen):
		code = http.StatusServiceUnavailable
	}
	return server.Errorf(code, "%w", err)
}

// AllocateIP is POST /ipam: a free address of each family asked for.
func (a *API) AllocateIP(ctx context.Context, req server.AllocateIPRequestObject) (server.AllocateIPResponseObject, error) {
	if a.Options.IPAM == addressing.Delegated {
		return nil, errDelegated()
	}
	families, err := ipam.ParseFamilies(req.Params.Family)
	if err != nil {
		return nil, ipamError(err, http.StatusBadRequest)
	}
	pools, plain, err := a.PoolsFor(ctx, req.Params.Owner, req.Params.Pool)
	if err != nil {
		return nil, err
	}
	res, err := a.Allocator.Give(ctx, families, req.Params.Owner, pools, req.Params.Expiration)
	if err != nil {
		if errors.Is(err, ipam.ErrDisabled) {
			return nil, server.Errorf(http.StatusBadRequest, "%w", err)
		}
		return nil, ipamError(err, http.StatusBadGateway)
	}
	out := rest.IPAMResponse{HostAddressing: a.hostAddressing()}
	var through4, through6 error
	if v4 := res.IPv4; v4 != nil {
		out.Address.IPv4, out.Address.IPv4ExpirationUUID, out.Address.IPv4PoolName = v4.IP.String(), v4.UUID, v4.Pool
		out.IPv4, through4 = a.address(v4, plain.IPv4)
	}
	if v6 := res.IPv6; v6 != nil {
		out.Address.IPv6, out.Address.IPv6ExpirationUUID, out.Address.IPv6PoolName = v6.IP.String(), v6.UUID, v6.Pool
		out.IPv6, through6 = a.address(v6, plain.IPv6)
	}
	if err := errors.Join(through4, through6); err != nil {
		for _, given := range []*ipam.Allocation{res.IPv4, res.IPv6} {
			if given != nil {
				a.Allocator.FreeOf(given.IP, given.Owner)
			}
		}
		return nil, server.Errorf(http.StatusBadGateway, "%w; try again in a moment", err)
	}
	return server.AllocateIP201JSONResponse(out), nil
}

// address describes one address: its gateway is the router, or where it is of a network interface
// of a cloud the cloud's router. That one is for those who route pods themselves; pods here have
// the router.
func (a *API) address(given *ipam.Allocation, plain bool) (rest.IPAMAddressResponse, error) {
	out := rest.IPAMAddressResponse{IP: given.IP.String(), ExpirationUUID: given.UUID, Gateway: a.router(given.IP.Is4()).String(), SkipMasquerade: plain}
	i, ok, err := a.Allocator.Through(given.IP)
	if err != nil || !ok {
		return out, err
	}
	out.Gateway, out.MasterMAC, out.InterfaceNumber = i.Gateway.String(), i.MAC, strconv.Itoa(i.Number)
	for _, p := range i.Networks {
		out.Cidrs = append(out.Cidrs, p.String())
	}
	return out, nil
}

// ReserveIP is POST /ipam/{ip}: this very address.
func (a *API) ReserveIP(_ context.Context, req server.ReserveIPRequestObject) (server.ReserveIPResponseObject, error) {
	if a.Options.IPAM == addressing.Delegated {
		return nil, errDelegated()
	}
	ip, err := netip.ParseAddr(req.IP)
	if err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "%q is not an IP address", req.IP)
	}
	if err := a.Pool.Allocate(ip, req.Params.Owner, req.Params.Pool); err != nil {
		return nil, ipamError(err, http.StatusInternalServerError)
	}
	return server.ReserveIP200Response{}, nil
}

// ReleaseIP is DELETE /ipam/{ip}. An address that an endpoint uses is kept.
func (a *API) ReleaseIP(_ context.Context, req server.ReleaseIPRequestObject) (server.ReleaseIPResponseObject, error) {
	ip, err := netip.ParseAddr(req.IP)
	if err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "%q is not an IP address", req.IP)
	}
	if err := a.Pool.Release(ip, req.Params.Pool); err != nil {
		return nil, ipamError(err, http.StatusInternalServerError)
	}
	return server.ReleaseIP200Response{}, nil
}

// hostAddressing is the node as pods see it: the router addresses are their gateways.
func (a *API) hostAddressing() rest.NodeAddressing {
	var out rest.NodeAddressing
	if a.router(true).IsValid() {
		out.IPv4 = rest.NodeAddressingElement{Enabled: true, IP: a.router(true).String(), AllocRange: a.allocRange(ipam.IPv4)}
	}
	if a.router(false).IsValid() {
		out.IPv6 = rest.NodeAddressingElement{Enabled: true, IP: a.router(false).String(), AllocRange: a.allocRange(ipam.IPv6)}
	}
	return out
}

// allocRange is the CIDR of a family from which addresses are given first.
func (a *API) allocRange(f ipam.Families) string {
	cidrs := a.Pool.CIDRs(f)
	if len(cidrs) == 0 {
		return ""
	}
	return cidrs[0].String()
}

// errDelegated is the answer to a request for an address where another plugin assigns them.
func errDelegated() error {
	return server.Errorf(http.StatusBadRequest,
		"the agent gives no addresses: --ipam is %s; name the plugin that does in the CNI configuration's ipam.type", addressing.Delegated)
}
