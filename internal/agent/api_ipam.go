package agent

import (
	"context"
	"errors"
	"net/http"
	"net/netip"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
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
func (a *api) AllocateIP(ctx context.Context, req server.AllocateIPRequestObject) (server.AllocateIPResponseObject, error) {
	if a.delegated() {
		return nil, errDelegated()
	}
	families, err := ipam.ParseFamilies(req.Params.Family)
	if err != nil {
		return nil, ipamError(err, http.StatusBadRequest)
	}
	pools, plain, err := a.poolsFor(ctx, req.Params.Owner, req.Params.Pool)
	if err != nil {
		return nil, err
	}
	res, err := a.book.Give(ctx, families, req.Params.Owner, pools, req.Params.Expiration)
	if err != nil {
		if errors.Is(err, ipam.ErrDisabled) {
			return nil, server.Errorf(http.StatusBadRequest, "%w", err)
		}
		return nil, ipamError(err, http.StatusBadGateway)
	}
	out := rest.IPAMResponse{HostAddressing: a.hostAddressing()}
	if v4 := res.IPv4; v4 != nil {
		out.Address.IPv4, out.Address.IPv4ExpirationUUID, out.Address.IPv4PoolName = v4.IP.String(), v4.UUID, v4.Pool
		out.IPv4 = rest.IPAMAddressResponse{IP: v4.IP.String(), ExpirationUUID: v4.UUID, Gateway: a.router4.String(), SkipMasquerade: plain.IPv4}
	}
	if v6 := res.IPv6; v6 != nil {
		out.Address.IPv6, out.Address.IPv6ExpirationUUID, out.Address.IPv6PoolName = v6.IP.String(), v6.UUID, v6.Pool
		out.IPv6 = rest.IPAMAddressResponse{IP: v6.IP.String(), ExpirationUUID: v6.UUID, Gateway: a.router6.String(), SkipMasquerade: plain.IPv6}
	}
	return server.AllocateIP201JSONResponse(out), nil
}

// ReserveIP is POST /ipam/{ip}: this very address.
func (a *api) ReserveIP(_ context.Context, req server.ReserveIPRequestObject) (server.ReserveIPResponseObject, error) {
	if a.delegated() {
		return nil, errDelegated()
	}
	ip, err := netip.ParseAddr(req.IP)
	if err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "%q is not an IP address", req.IP)
	}
	if err := a.pool.Allocate(ip, req.Params.Owner, req.Params.Pool); err != nil {
		return nil, ipamError(err, http.StatusInternalServerError)
	}
	return server.ReserveIP200Response{}, nil
}

// ReleaseIP is DELETE /ipam/{ip}. An address that an endpoint uses is kept.
func (a *api) ReleaseIP(_ context.Context, req server.ReleaseIPRequestObject) (server.ReleaseIPResponseObject, error) {
	ip, err := netip.ParseAddr(req.IP)
	if err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "%q is not an IP address", req.IP)
	}
	if err := a.pool.Release(ip, req.Params.Pool); err != nil {
		return nil, ipamError(err, http.StatusInternalServerError)
	}
	return server.ReleaseIP200Response{}, nil
}

// hostAddressing is the node as pods see it: the router addresses are their gateways.
func (a *api) hostAddressing() rest.NodeAddressing {
	var out rest.NodeAddressing
	if a.router4.IsValid() {
		out.IPv4 = rest.NodeAddressingElement{Enabled: true, IP: a.router4.String(), AllocRange: a.allocRange(ipam.IPv4)}
	}
	if a.router6.IsValid() {
		out.IPv6 = rest.NodeAddressingElement{Enabled: true, IP: a.router6.String(), AllocRange: a.allocRange(ipam.IPv6)}
	}
	return out
}

// allocRange is the CIDR of a family from which addresses are given first.
func (a *api) allocRange(f ipam.Families) string {
	cidrs := a.pool.CIDRs(f)
	if len(cidrs) == 0 {
		return ""
	}
	return cidrs[0].String()
}
