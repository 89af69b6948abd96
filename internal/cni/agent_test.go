package cni

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/api/rest"
)

// fakeAgent serves the part of the agent's API that the plugin uses, on a unix socket. It keeps its
// state and does what the plugin relies on: it brings the host side up, and removes it with
// the endpoint.
type fakeAgent struct {
	t      testing.TB
	node   *testNode
	socket string
	server *http.Server

	mu        sync.Mutex
	next      int
	ips       map[string]string                     // address -> owner, not claimed by an endpoint
	endpoints map[string]rest.EndpointChangeRequest // by attachment id
	calls     []string
	// fault is asked before a call is handled. If it returns true it has answered.
	fault func(call string, w http.ResponseWriter, r *http.Request) bool
	// after is called when a call was handled and before it is answered; true drops the connection.
	after  func(call string) bool
	config rest.DaemonConfigurationStatus
	health rest.EndpointHealth
	// edit changes the answer to an allocation.
	edit func(*rest.IPAMResponse)
	ipv4 bool
	ipv6 bool
}

func newFakeAgent(t testing.TB, node *testNode) *fakeAgent {
	a := &fakeAgent{
		t: t, node: node,
		socket:    filepath.Join(t.TempDir(), "agent.sock"),
		ips:       map[string]string{},
		endpoints: map[string]rest.EndpointChangeRequest{},
		config: rest.DaemonConfigurationStatus{
			DeviceMTU: 1500, RouteMTU: 1450, DatapathMode: rest.DatapathModeVeth,
			GSOMaxSize: 98304, GROMaxSize: 98304, GSOIPv4MaxSize: 49152, GROIPv4MaxSize: 49152,
			IPLocalReservedPorts: "8472", PacketizationLayerPMTUDMode: "blackhole",
		},
		health: rest.EndpointHealth{OverallHealth: rest.EndpointHealthStatusOK},
		ipv4:   true, ipv6: true,
	}
	a.start()
	t.Cleanup(a.stop)
	return a
}

func (a *fakeAgent) start() {
	mux := http.NewServeMux()
	for pattern, handle := range map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/config": func(w http.ResponseWriter, _ *http.Request) {
			answer(w, 200, rest.DaemonConfiguration{Status: a.config})
		},
		"GET /v1/healthz": func(w http.ResponseWriter, _ *http.Request) {
			answer(w, 200, rest.StatusResponse{Cilium: rest.Status{State: rest.StateOk}})
		},
		"POST /v1/ipam":                 a.allocate,
		"DELETE /v1/ipam/{ip}":          a.release,
		"PUT /v1/endpoint/{id}":         a.create,
		"DELETE /v1/endpoint/{id}":      a.remove,
		"GET /v1/endpoint":              a.list,
		"GET /v1/endpoint/{id}":         a.get,
		"GET /v1/endpoint/{id}/healthz": a.endpointHealth,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			a.mu.Lock()
			a.calls = append(a.calls, pattern)
			fault := a.fault
			a.mu.Unlock()
			if fault == nil || !fault(pattern, w, r) {
				handle(w, r)
			}
		})
	}
	l, err := net.Listen("unix", a.socket)
	if err != nil {
		a.t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	a.server = server
	go server.Serve(l)
}

func (a *fakeAgent) stop() { a.server.Close() }

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(body)
}

// hangUp closes the connection without an answer.
func hangUp(w http.ResponseWriter) {
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		c.Close()
	}
}

func (a *fakeAgent) handled(call string, w http.ResponseWriter) bool {
	if a.after != nil && a.after(call) {
		hangUp(w)
		return false
	}
	return true
}

func (a *fakeAgent) allocate(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	owner := r.URL.Query().Get("owner")
	if owner == "" || r.Header.Get("expiration") != "true" {
		answer(w, 502, fmt.Sprintf("bad request: owner %q, expiration %q", owner, r.Header.Get("expiration")))
		return
	}
	a.next++
	var resp rest.IPAMResponse
	if a.ipv4 {
		ip := fmt.Sprintf("10.1.%d.%d", a.next/250, a.next%250+2)
		a.ips[ip] = owner
		resp.Address.IPv4, resp.Address.IPv4PoolName = ip, "default"
		resp.IPv4 = rest.IPAMAddressResponse{IP: ip, ExpirationUUID: "uuid-" + ip}
		resp.HostAddressing.IPv4 = rest.NodeAddressingElement{Enabled: true, IP: "10.1.0.1"}
	}
	if a.ipv6 {
		ip := fmt.Sprintf("fd00:1::%x", a.next+1)
		a.ips[ip] = owner
		resp.Address.IPv6, resp.Address.IPv6PoolName = ip, "default"
		resp.IPv6 = rest.IPAMAddressResponse{IP: ip, ExpirationUUID: "uuid-" + ip, SkipMasquerade: true}
		resp.HostAddressing.IPv6 = rest.NodeAddressingElement{Enabled: true, IP: "fd00:1::1"}
	}
	if a.edit != nil {
		a.edit(&resp)
	}
	if a.handled("POST /v1/ipam", w) {
		answer(w, 201, resp)
	}
}

func (a *fakeAgent) release(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ip := r.PathValue("ip")
	if _, ok := a.ips[ip]; !ok || r.URL.Query().Get("pool") != "default" {
		answer(w, 404, "address is not allocated")
		return
	}
	delete(a.ips, ip)
	w.WriteHeader(200)
}

func (a *fakeAgent) create(w http.ResponseWriter, r *http.Request) {
	var req rest.EndpointChangeRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || r.PathValue("id") != "cilium-local:0" {
		answer(w, 400, "bad request")
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	id := req.ContainerID + ":" + req.ContainerInterfaceName
	if _, dup := a.endpoints[id]; dup {
		answer(w, 400, "endpoint exists")
		return
	}
	link, err := a.node.h.LinkByName(req.InterfaceName)
	switch {
	case err != nil:
		answer(w, 400, err.Error())
		return
	case link.Attrs().Index != req.InterfaceIndex || link.Attrs().HardwareAddr.String() != req.HostMAC:
		answer(w, 400, "the interface does not match the request")
		return
	case link.Attrs().Flags&net.FlagUp != 0:
		answer(w, 400, "the interface is up before it has a program")
		return
	}
	if err := a.node.h.LinkSetUp(link); err != nil {
		answer(w, 500, err.Error())
		return
	}
	for _, ip := range []string{req.Addressing.IPv4, req.Addressing.IPv6} {
		bare, _, _ := strings.Cut(ip, "/")
		delete(a.ips, bare)
	}
	a.endpoints[id] = req
	if a.handled("PUT /v1/endpoint/{id}", w) {
		answer(w, 201, rest.Endpoint{ID: len(a.endpoints)})
	}
}

func (a *fakeAgent) remove(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := strings.TrimPrefix(r.PathValue("id"), "cni-attachment-id:")
	req, ok := a.endpoints[id]
	if !ok {
		answer(w, 404, "no such endpoint")
		return
	}
	delete(a.endpoints, id)
	if link, err := a.node.h.LinkByName(req.InterfaceName); err == nil {
		a.node.h.LinkDel(link)
	}
	w.WriteHeader(200)
}

func (a *fakeAgent) list(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []rest.Endpoint{{ID: 9999}} // one that no runtime made
	for id, req := range a.endpoints {
		out = append(out, rest.Endpoint{Status: rest.EndpointStatus{
			ExternalIdentifiers: rest.EndpointIdentifiers{CNIAttachmentID: id, ContainerID: req.ContainerID},
			Networking:          rest.EndpointNetworking{InterfaceName: req.InterfaceName},
		}})
	}
	answer(w, 200, out)
}

func (a *fakeAgent) get(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	req, ok := a.endpoints[strings.TrimPrefix(r.PathValue("id"), "cni-attachment-id:")]
	if !ok {
		answer(w, 404, "no such endpoint")
		return
	}
	answer(w, 200, rest.Endpoint{Status: rest.EndpointStatus{
		Networking: rest.EndpointNetworking{InterfaceName: req.InterfaceName, InterfaceIndex: req.InterfaceIndex},
	}})
}

func (a *fakeAgent) endpointHealth(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.endpoints[strings.TrimPrefix(r.PathValue("id"), "cni-attachment-id:")]; !ok {
		answer(w, 404, "no such endpoint")
		return
	}
	answer(w, 200, a.health)
}

// state is what the agent holds, for comparison.
func (a *fakeAgent) state() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("endpoints %v, addresses %v", slices.Sorted(maps.Keys(a.endpoints)), slices.Sorted(maps.Keys(a.ips)))
}

// expire gives back the addresses that no endpoint claimed, as the agent does after some minutes.
func (a *fakeAgent) expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.ips)
}

// testNode is the namespace in which the plugin runs.
type testNode struct {
	ns *podNS
	h  *netlink.Handle
}

// links lists the interfaces of a namespace.
func links(t testing.TB, h *netlink.Handle) []string {
	t.Helper()
	list, err := h.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range list {
		out = append(out, l.Attrs().Name)
	}
	slices.Sort(out)
	return out
}
