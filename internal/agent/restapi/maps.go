package restapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/datapath"
)

// mapReaders lists the kernel's maps by the name they have in the API.
func (a *API) mapReaders() map[string]func() ([]rest.BPFMapEntry, error) {
	return map[string]func() ([]rest.BPFMapEntry, error){
		"endpoints": reader(a.Maps.Endpoints, a.endpointEntry), "policy": a.readPolicyMap, "ipcache": reader(a.Maps.IPCache, ipcacheEntry),
		"ct": a.readCTMap, "metrics": reader(a.Maps.Metrics, metricEntry), "services": reader(a.Maps.Services, serviceEntry),
		"shares": reader(a.Maps.FlowShares, shareEntry), "tunnel": reader(a.Maps.TunnelPeers, tunnelEntry),
	}
}

// reader returns a function that reads the rows of a map, and shows each as an entry.
func reader[T any](rows func() ([]T, error), entry func(T) rest.BPFMapEntry) func() ([]rest.BPFMapEntry, error) {
	return func() (out []rest.BPFMapEntry, err error) {
		list, err := rows()
		for _, r := range list {
			out = append(out, entry(r))
		}
		return out, err
	}
}

// mapPath is where a map is pinned.
func (a *API) mapPath(name string) string { return filepath.Join(a.Options.MapDirectory, name) }

// ListMaps is GET /map: the names, without the content.
func (a *API) ListMaps(context.Context, server.ListMapsRequestObject) (server.ListMapsResponseObject, error) {
	var out rest.BPFMapList
	for name := range a.mapReaders() {
		out.Maps = append(out.Maps, rest.BPFMap{Path: a.mapPath(name)})
	}
	slices.SortFunc(out.Maps, func(x, y rest.BPFMap) int { return cmp.Compare(x.Path, y.Path) })
	return server.ListMaps200JSONResponse(out), nil
}

// GetMap is GET /map/{name}: the content, read from the kernel now.
func (a *API) GetMap(_ context.Context, req server.GetMapRequestObject) (server.GetMapResponseObject, error) {
	read, ok := a.mapReaders()[req.Name]
	if !ok {
		return nil, server.Errorf(http.StatusNotFound, "no map is called %q; there are ct, endpoints, ipcache, metrics, policy, services, shares and tunnel", req.Name)
	}
	entries, err := read()
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", req.Name, err)
	}
	slices.SortStableFunc(entries, func(x, y rest.BPFMapEntry) int { return cmp.Compare(x.Key, y.Key) })
	return server.GetMap200JSONResponse(rest.BPFMap{Path: a.mapPath(req.Name), Cache: entries}), nil
}

func (a *API) endpointEntry(r datapath.Endpoint) rest.BPFMapEntry {
	e := rest.MapEndpoint{
		ID: int(r.ID), Identity: int(r.Identity), InterfaceIndex: r.IfIndex, MAC: r.MAC.String(), HostMAC: r.HostMAC.String(),
		Locked: r.Locked, RuleSet: int(r.RuleSet), PolicyGeneration: int(r.PolicyGeneration),
	}
	if row, ok := a.Registry.Get(r.ID); ok && row.IfIndex == r.IfIndex {
		e.InterfaceName = row.IfName
	}
	if r.IPv4.IsValid() {
		e.IPv4 = r.IPv4.String()
	}
	if r.IPv6.IsValid() {
		e.IPv6 = r.IPv6.String()
	}
	return rest.BPFMapEntry{
		Key:      fmt.Sprintf("ifindex %d", r.IfIndex),
		Value:    fmt.Sprintf("endpoint %d identity %d ruleset %d generation %d", r.ID, r.Identity, r.RuleSet, r.PolicyGeneration),
		Endpoint: e,
	}
}

func tunnelEntry(r datapath.TunnelPeer) rest.BPFMapEntry {
	value := fmt.Sprintf("identities %d to %d", r.First, r.Last)
	if !r.Own {
		value += ", of another cluster"
	}
	return rest.BPFMapEntry{Key: r.Addr.String(), Value: value}
}

func shareEntry(r datapath.FlowShare) rest.BPFMapEntry {
	return rest.BPFMapEntry{
		Key: strconv.Itoa(int(r.Endpoint)), Share: rest.MapShare{Endpoint: int(r.Endpoint), Entries: r.Entries, Share: r.Share, Excess: r.Excess},
	}
}

func (a *API) readPolicyMap() ([]rest.BPFMapEntry, error) {
	sets, err := a.Maps.RuleSets()
	if err != nil {
		return nil, err
	}
	blocks, err := a.Maps.Blocks()
	if err != nil {
		return nil, err
	}
	prefixes := map[uint32]string{}
	for _, b := range blocks {
		prefixes[b.Identity] = b.Prefix.String()
	}
	slices.SortFunc(sets, func(x, y datapath.RuleSet) int { return cmp.Compare(x.ID, y.ID) })
	var out []rest.BPFMapEntry
	for _, rs := range sets {
		for _, d := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
			enforced := rs.IngressEnforced
			if d == datapath.Egress {
				enforced = rs.EgressEnforced
			}
			value := "allow"
			if enforced {
				value = "drop"
			}
			out = append(out, rest.BPFMapEntry{
				Key: fmt.Sprintf("ruleset %d %s default", rs.ID, d), Value: value,
				Policy: rest.MapPolicy{RuleSet: int(rs.ID), Direction: rest.MapPolicyDirection(d.String()), Default: true, Enforced: enforced},
			})
		}
		for k, e := range rs.Entries {
			verdict, value := rest.PolicyVerdictAllowed, []string{}
			switch {
			case e.Deny:
				verdict = rest.PolicyVerdictDenied
			case !e.Allow:
				verdict = ""
			}
			admin, baseline := tierRule(e.Admin), tierRule(e.Baseline)
			if admin != "" {
				value = append(value, "admin "+admin)
			}
			if verdict != "" {
				value = append(value, string(verdict))
			}
			if baseline != "" {
				value = append(value, "baseline "+baseline)
			}
			out = append(out, rest.BPFMapEntry{
				Key:   fmt.Sprintf("ruleset %d %s identity %d %s port %d/%d", rs.ID, k.Direction, k.Identity, datapath.ProtoName(k.Proto), k.Port, k.PortBits),
				Value: strings.Join(value, ", "),
				Policy: rest.MapPolicy{
					RuleSet: int(rs.ID), Direction: rest.MapPolicyDirection(k.Direction.String()), Identity: int(k.Identity), Block: prefixes[k.Identity],
					Proto: datapath.ProtoName(k.Proto), Port: int(k.Port), PortBits: int(k.PortBits), Verdict: verdict,
					Admin: admin, Baseline: baseline,
				},
			})
		}
	}
	return out, nil
}

// tierRule writes a rule of a tier as "deny@3"; empty if there is none.
func tierRule(r datapath.TierRule) string {
	if r == 0 {
		return ""
	}
	return r.String()
}

func ipcacheEntry(r datapath.IPCacheEntry) rest.BPFMapEntry {
	e := rest.MapIPCache{Prefix: r.Prefix.String(), Identity: int(r.Identity)}
	value := fmt.Sprintf("identity %d", r.Identity)
	if r.TunnelEndpoint.IsValid() {
		e.TunnelEndpoint = r.TunnelEndpoint.String()
		value += " via " + e.TunnelEndpoint
	}
	return rest.BPFMapEntry{Key: e.Prefix, Value: value, IPCache: e}
}

// maxFlows bounds what GET /map/ct returns: the table can be far larger than a useful answer.
const maxFlows = 10000

func (a *API) readCTMap() ([]rest.BPFMapEntry, error) {
	var out []rest.BPFMapEntry
	err := a.Maps.CT(func(f datapath.CTEntry) bool {
		proto := datapath.ProtoName(f.Proto)
		out = append(out, rest.BPFMapEntry{
			Key:   fmt.Sprintf("%s %s -> %s", proto, f.Src, f.Dst),
			Value: fmt.Sprintf("identity %d -> %d expires %ds", f.SrcIdentity, f.DstIdentity, int(f.Expires.Seconds())),
			Flow: rest.MapFlow{
				Source: f.Src.String(), Destination: f.Dst.String(), Proto: proto, SourceIdentity: int(f.SrcIdentity),
				DestinationIdentity: int(f.DstIdentity), SourceGeneration: int(f.SrcGeneration), DestinationGeneration: int(f.DstGeneration),
				ExpiresSeconds: int(f.Expires.Seconds()), SeenReply: f.SeenReply, Closing: f.Closing,
				ForwardPackets: f.ForwardPackets, ReversePackets: f.ReversePackets,
			},
		})
		return len(out) < maxFlows
	})
	return out, err
}

func metricEntry(r datapath.Metric) rest.BPFMapEntry {
	return rest.BPFMapEntry{
		Key:    fmt.Sprintf("%s %s", r.Reason, r.Direction),
		Value:  fmt.Sprintf("%d packets %d bytes", r.Packets, r.Bytes),
		Metric: rest.MapMetric{Reason: r.Reason.String(), Direction: r.Direction.String(), Packets: r.Packets, Bytes: r.Bytes},
	}
}
