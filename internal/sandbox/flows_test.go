package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/ui"
)

// proofPolicies let some through in each direction, and refuse others at either end.
const proofPolicies = `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: beta, namespace: default}
spec:
  endpointSelector: {matchLabels: {name: beta}}
  ingress: [{fromEndpoints: [{matchLabels: {name: alpha}}], toPorts: [{ports: [{port: "80", protocol: TCP}]}]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: gamma, namespace: default}
spec:
  endpointSelector: {matchLabels: {name: gamma}}
  ingress: [{fromEndpoints: [{matchLabels: {app: proof}}]}]
  ingressDeny: [{fromEndpoints: [{matchLabels: {name: delta}}]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: delta, namespace: default}
spec:
  endpointSelector: {matchLabels: {name: delta}}
  egress:
  - toEndpoints: [{matchLabels: {name: alpha}}]
    toPorts: [{ports: [{port: "8080", protocol: UDP}]}]
  - toEntities: [world]
    toPorts: [{ports: [{port: "80", protocol: TCP}]}]
`

// proof is a cluster of three nodes, all that happens in it, and what is reported of it.
type proof struct {
	*Sandbox
	t       *testing.T
	st      *state
	parties []party
	owner   map[netip.Addr]string
	capture *capture
	hawser  string
	client  observer.ObserverClient
}

// testFlows sends traffic between pods of three nodes, and compares what the relay, the page and
// hawser observe report with the oracle and with what was captured at the pods. Then there are
// adversaries.
func testFlows(t *testing.T, bin string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cfg := testConfig(t)
	cfg.BinDir, cfg.Nodes = bin, 3
	p := &proof{Sandbox: testSandbox(t, cfg), t: t, owner: map[netip.Addr]string{}, hawser: filepath.Join(bin, "hawser")}
	if err := p.Up(ctx); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.PolicyDir(), "proof.yaml"), []byte(proofPolicies), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"alpha", "beta", "gamma", "delta"} {
		spec := PodSpec{Name: name, Node: fmt.Sprintf("n%d", i%3+1), Labels: map[string]string{"app": "proof", "name": name}, Ports: []uint16{80, 8080}}
		if _, err := p.Run(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if p.st, err = p.running(); err != nil {
		t.Fatal(err)
	}
	p.parties = p.Sandbox.parties(p.st)
	for _, q := range p.parties {
		for _, a := range q.addrs {
			p.owner[a] = q.name
		}
	}
	conn, err := grpc.NewClient("unix://"+p.relaySocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p.client = observer.NewObserverClient(conn)
	p.capture = startCapture(t, p.parties, []uint16{80, 8080})
	reachEventually(t, ctx, p.Sandbox, func(m *Matrix) bool { return m.Denied > 0 })

	p.testAgreement(ctx)
	p.testAdversaries(ctx)
}

// reported is what flows say of a connection.
type reported struct{ forwarded, dropped, arrived bool }

// testAgreement: for each connection between any two, oracle, capture, relay, page and hawser
// observe say the same.
func (p *proof) testAgreement(ctx context.Context) {
	t := p.t
	before, _ := p.capture.openings()
	packets := p.capture.packets()
	edgesBefore := p.finalEdges()
	since := time.Now()
	stop := p.follow("--follow", "--since", since.UTC().Format(time.RFC3339Nano))
	m, err := p.Reach(ctx, ReachOptions{Protocols: []Protocol{TCP, UDP}})
	if err != nil {
		t.Fatal(err)
	}
	if m.Unexpected > 0 || m.Denied == 0 || m.Reached == 0 {
		var out bytes.Buffer
		m.Print(&out, false)
		t.Fatalf("the network does not do what the oracle says:%s", &out)
	}

	// The capture and the flows that came, in both directions.
	type probeKey struct {
		from, to string
		proto    Protocol
		addr     netip.AddrPort
	}
	expected := map[probeKey]bool{}
	for _, probe := range m.Probes {
		expected[probeKey{probe.From, probe.To, probe.Protocol, netip.AddrPortFrom(probe.Address, probe.Port)}] = probe.Expected
	}
	allowed := func(o opening) bool {
		return expected[probeKey{p.owner[o.from.Addr()], p.owner[o.to.Addr()], o.proto, o.to}]
	}
	var left, came map[opening]bool
	var flows map[opening]reported
	controllers.Eventually(t, time.Minute, func() string {
		left, came = p.capture.openings()
		maps.DeleteFunc(left, func(o opening, _ bool) bool { return before[o] })
		var problem string
		if flows, problem = p.connections(stop(false)); problem != "" {
			return problem
		}
		for o := range left {
			of, ok := flows[o]
			if want := allowed(o); !ok || of.dropped == want || want && !of.forwarded {
				return fmt.Sprintf("of %v from %s to %s, allowed %v, flows report %+v (%d connections, %d reported)",
					o, p.owner[o.from.Addr()], p.owner[o.to.Addr()], want, of, len(left), len(flows))
			}
			// What leads out of the cluster arrives in the name of its node.
			if p.owner[o.to.Addr()] != worldName && (came[o] != of.arrived || came[o] == of.dropped) {
				return fmt.Sprintf("%v came: %v; flows report %+v", o, came[o], of)
			}
		}
		return ""
	})
	captured := len(left)
	for o, n := range p.capture.packets() {
		if before[o] && n > packets[o] { // a probe that had the port of an earlier one
			captured++
		}
	}
	if captured < len(m.Probes) {
		t.Errorf("%d connections were captured of %d probes", captured, len(m.Probes))
	}
	for o := range flows {
		if !left[o] && !before[o] {
			t.Errorf("flows report %v, of which there was no packet", o)
		}
	}
	stop(true)

	// hawser observe, with filters, shows those connections that a naive filter finds.
	verdicts := []string{"--type", "policy-verdict", "--no-reply"}
	for _, row := range []struct {
		args []string
		keep func(opening) bool
	}{
		{append([]string{"--from-pod", "default/alpha"}, verdicts...), func(o opening) bool { return p.owner[o.from.Addr()] == "alpha" }},
		{append([]string{"--to-pod", "gamma", "--protocol", "udp", "--to-port", "8080"}, verdicts...), func(o opening) bool {
			return p.owner[o.to.Addr()] == "gamma" && o.proto == UDP && o.to.Port() == 8080
		}},
		{[]string{"--verdict", "DROPPED"}, func(o opening) bool { return !allowed(o) }},
		{append([]string{"--to-label", "name=beta", "-6"}, verdicts...), func(o opening) bool { return p.owner[o.to.Addr()] == "beta" && o.to.Addr().Is6() }},
		{append([]string{"--from-identity", "world-ipv4", "--to-ip", "10.244.0.0/16"}, verdicts...), func(o opening) bool {
			return p.owner[o.from.Addr()] == worldName && o.to.Addr().Is4()
		}},
	} {
		out, err := p.observe(append(row.args, "--since", since.UTC().Format(time.RFC3339Nano), "--all")...).Output()
		if err != nil {
			t.Fatalf("hawser observe %v: %v", row.args, err)
		}
		got, problem := p.connections(out)
		if problem != "" {
			t.Fatalf("hawser observe %v: %s", row.args, problem)
		}
		want, have := map[opening]bool{}, map[opening]bool{}
		for o := range left {
			if row.keep(o) {
				want[o] = true
			}
		}
		for o := range got {
			if !before[o] {
				have[o] = true
			}
		}
		if len(want) == 0 || !maps.Equal(want, have) {
			t.Errorf("hawser observe %v shows %d connections, %d of them are right, of %d", row.args, len(have), common(want, have), len(want))
		}
	}

	// The page: each pair as the oracle says.
	if edgesBefore == nil {
		t.Log("the page is not built: make web")
		return
	}
	wanted := map[string][2]bool{} // let in, refused
	for _, probe := range m.Probes {
		id := fmt.Sprintf("%s>%s>%s/%d", probe.From, probe.To, strings.ToUpper(string(probe.Protocol)), probe.Port)
		wanted[id] = [2]bool{wanted[id][0] || probe.Expected, wanted[id][1] || !probe.Expected}
	}
	controllers.Eventually(t, 2*time.Minute, func() string {
		got := map[string][2]bool{}
		for id, e := range p.edges() {
			was := edgesBefore[id]
			if seen := [2]bool{e[0] > was[0], e[1] > was[1]}; seen[0] || seen[1] {
				got[id] = seen
			}
		}
		return gocmp.Diff(wanted, got)
	})
}

// testAdversaries: who sends in another's name, who floods, and clients of every bad kind, change
// nothing for others.
func (p *proof) testAdversaries(ctx context.Context) {
	t := p.t
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	alpha, beta, gamma := p.party("alpha"), p.party("beta"), p.party("gamma")

	// A client that asks for all flows and never reads one.
	if _, err := p.client.GetFlows(ctx, &observer.GetFlowsRequest{Follow: true}); err != nil {
		t.Fatal(err)
	}
	// Requests that are invalid, or cost too much.
	for name, filter := range map[string]*flow.FlowFilter{
		"a bad expression":                {SourceLabel: []string{"app in ("}},
		"a bad range":                     {SourceIp: []string{"10.0.0.0/99"}},
		"a filter of no end":              {SourcePod: strings.Split(strings.Repeat("x,", 100_000), ",")},
		"a name of a megabyte":            {SourcePod: []string{strings.Repeat("x", 1<<20)}},
		"HTTP, of which nothing is known": {HttpPath: []string{"("}},
	} {
		stream, err := p.client.GetFlows(ctx, &observer.GetFlowsRequest{Number: 1, Whitelist: []*flow.FlowFilter{filter}})
		for err == nil { // the nodes that are asked come first
			_, err = stream.Recv()
		}
		// What is refused before it is decoded has the code that grpc gives it.
		early := status.Code(err) == codes.Internal && strings.Contains(err.Error(), "the message has more than")
		if c := status.Code(err); c != codes.InvalidArgument && c != codes.ResourceExhausted && c != codes.Unimplemented && !early {
			t.Errorf("%s: %v", name, err)
		}
	}
	// More followers than the relay serves: the rest is refused.
	following, end := context.WithCancel(ctx)
	served, refused := p.followers(following, 400)
	if served == 0 || refused == 0 {
		t.Errorf("of 400 followers %d are served and %d refused", served, refused)
	}
	end()

	// Someone else follows drops to the end.
	stop := p.follow("--follow", "--verdict", "DROPPED", "--from-pod", "default/delta", "--since", "0s")

	// In the name of beta, from alpha: reported as dropped, and as sent by alpha.
	const spoofedPort = 40404
	p.spoof(alpha, netip.AddrPortFrom(beta.addrs[0], spoofedPort), netip.AddrPortFrom(gamma.addrs[0], 80))
	controllers.Eventually(t, 2*time.Minute, func() string {
		out, err := p.observe("--ip", beta.addrs[0].String(), "--port", strconv.Itoa(spoofedPort), "--since", "5m", "--all").Output()
		if err != nil {
			return err.Error()
		}
		dropped := 0
		for _, f := range parseFlows(t, out) {
			if f.GetVerdict() != flow.Verdict_DROPPED || f.GetDropReasonDesc() != flow.DropReason_INVALID_SOURCE_IP || f.GetSource().GetPodName() != "alpha" {
				t.Fatalf("a packet in beta's name is reported as %v", f)
			}
			dropped++
		}
		if dropped == 0 {
			return "nothing is reported of it"
		}
		return ""
	})

	// A flood of flows of which no two are alike. What is kept of the first has its place by then.
	pids := map[string]int{"relay": p.st.Relay.PID, "page": p.st.Page.PID}
	for _, n := range p.st.Nodes {
		pids["agent of "+n.Name] = n.Agent.PID
	}
	p.flood(alpha, beta.addrs[0], 10_000, 30_000)
	controllers.Eventually(t, time.Minute, func() string { return p.quiet(ctx) })
	first := residents(t, pids)
	p.flood(alpha, beta.addrs[0], 30_000, 60_000)
	p.flood(alpha, beta.addrs[1], 10_000, 60_000)
	controllers.Eventually(t, time.Minute, func() string { return p.quiet(ctx) })
	const room = 64 << 20 // of Go's heap between two collections
	for name, is := range residents(t, pids) {
		if is > first[name]+room {
			t.Errorf("%s has %d MiB after a flood and had %d", name, is>>20, first[name]>>20)
		}
	}
	// Whoever follows something else has it all the same.
	if _, err := p.Reach(ctx, ReachOptions{From: []string{"delta"}, To: []string{"beta"}, Protocols: []Protocol{TCP}}); err != nil {
		t.Fatal(err)
	}
	controllers.Eventually(t, time.Minute, func() string {
		flows, problem := p.connections(stop(false))
		if problem == "" && len(flows) == 0 {
			problem = "a follower gets nothing after the flood"
		}
		return problem
	})
	stop(true)
}

func common(a, b map[opening]bool) (n int) {
	for o := range a {
		if b[o] {
			n++
		}
	}
	return n
}

func (p *proof) party(name string) party {
	for _, q := range p.parties {
		if q.name == name {
			return q
		}
	}
	p.t.Fatalf("no party %s", name)
	return party{}
}

// observe is hawser observe at the relay.
func (p *proof) observe(args ...string) *exec.Cmd {
	return exec.Command(p.hawser, append([]string{"observe", "--server", p.relaySocket(), "-o", "json"}, args...)...)
}

// follow starts hawser observe and returns a function that returns what it has written so far, and
// interrupts it if that is wanted.
func (p *proof) follow(args ...string) func(end bool) []byte {
	t := p.t
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "flows"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := p.observe(args...)
	cmd.Stdout, cmd.Stderr = file, t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop := func() {
		once.Do(func() {
			_ = cmd.Process.Signal(os.Interrupt)
			if err := cmd.Wait(); err != nil {
				t.Errorf("hawser observe %v: %v", args, err)
			}
			_ = file.Close()
		})
	}
	t.Cleanup(stop)
	return func(end bool) []byte {
		if end {
			stop()
			return nil
		}
		out, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return out[:bytes.LastIndexByte(out, '\n')+1] // the last line may be half written
	}
}

// parseFlows reads what hawser observe writes.
func parseFlows(t *testing.T, out []byte) (all []*flow.Flow) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var res observer.GetFlowsResponse
		if err := protojson.Unmarshal(lines.Bytes(), &res); err != nil {
			t.Fatalf("%v in %s", err, lines.Bytes())
		}
		if f := res.GetFlow(); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// connections are those between pods and the world that flows report, with what they report. A
// problem is a flow that names another pod than the one with the address.
func (p *proof) connections(out []byte) (map[opening]reported, string) {
	all := map[opening]reported{}
	for _, f := range parseFlows(p.t, out) {
		o, ok := openingOf(f)
		if !ok || p.owner[o.from.Addr()] == "" || p.owner[o.to.Addr()] == "" {
			continue
		}
		for addr, end := range map[netip.AddrPort]*flow.Endpoint{o.from: f.GetSource(), o.to: f.GetDestination()} {
			if owner := p.owner[addr.Addr()]; owner != worldName && end.GetPodName() != owner {
				return nil, fmt.Sprintf("%v is reported as %s: %v", addr, end.GetPodName(), f)
			}
		}
		of := all[o]
		switch f.GetVerdict() {
		case flow.Verdict_FORWARDED:
			of.forwarded = true
			of.arrived = of.arrived || f.GetTraceObservationPoint() == flow.TraceObservationPoint_TO_ENDPOINT
		case flow.Verdict_DROPPED:
			of.dropped = true
		}
		all[o] = of
	}
	return all, ""
}

// openingOf is the connection of a flow that is no answer.
func openingOf(f *flow.Flow) (o opening, ok bool) {
	if f.GetIsReply().GetValue() {
		return o, false
	}
	src, srcErr := netip.ParseAddr(f.GetIP().GetSource())
	dst, dstErr := netip.ParseAddr(f.GetIP().GetDestination())
	var sport, dport uint32
	switch {
	case f.GetL4().GetTCP() != nil:
		o.proto, sport, dport = TCP, f.GetL4().GetTCP().GetSourcePort(), f.GetL4().GetTCP().GetDestinationPort()
	case f.GetL4().GetUDP() != nil:
		o.proto, sport, dport = UDP, f.GetL4().GetUDP().GetSourcePort(), f.GetL4().GetUDP().GetDestinationPort()
	default:
		return o, false
	}
	o.from, o.to = netip.AddrPortFrom(src, uint16(sport)), netip.AddrPortFrom(dst, uint16(dport))
	return o, srcErr == nil && dstErr == nil
}

// edges are the connections let in and packets refused that the page has, by who asked whom for
// what; nil if there is no page.
func (p *proof) edges() map[string][2]uint64 {
	t := p.t
	t.Helper()
	server, token, ok := strings.Cut(p.st.PageURL, "/#token=")
	if !ok {
		if ui.Built() {
			t.Fatalf("the page is at %q: %s", p.st.PageURL, machine.LastLines(p.pageLog(), 5))
		}
		return nil
	}
	req, err := http.NewRequest(http.MethodGet, server+"/api/map", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got ui.Snapshot
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatalf("%s: %v", res.Status, err)
	}
	out := map[string][2]uint64{}
	name := func(id string) string {
		if strings.HasPrefix(id, ":world") { // of either family
			return worldName
		}
		return strings.TrimPrefix(id, "default/")
	}
	for _, e := range got.Edges {
		id := fmt.Sprintf("%s>%s>%s/%d", name(e.Source), name(e.Destination), e.Protocol, e.Port)
		if e.Port == 80 || e.Port == 8080 {
			out[id] = [2]uint64{out[id][0] + e.Forwarded, out[id][1] + e.Dropped}
		}
	}
	return out
}

// finalEdges are the edges of the page once it has everything that was.
func (p *proof) finalEdges() (now map[string][2]uint64) {
	last := p.edges()
	controllers.Eventually(p.t, time.Minute, func() string {
		time.Sleep(1500 * time.Millisecond) // longer than the relay holds flows
		if now = p.edges(); maps.Equal(now, last) {
			return ""
		}
		last = now
		return "the page still changes"
	})
	return now
}

// followers opens so many requests to follow and reports how many are served and how many refused.
func (p *proof) followers(ctx context.Context, n int) (served, refused int) {
	type outcome struct{ refused bool }
	outcomes := make(chan outcome, n)
	var conns []*grpc.ClientConn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for i := range n {
		if i%50 == 0 {
			c, err := grpc.NewClient("unix://"+p.relaySocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				p.t.Fatal(err)
			}
			conns = append(conns, c)
		}
		stream, err := observer.NewObserverClient(conns[len(conns)-1]).GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Number: 1})
		if err != nil {
			p.t.Fatal(err)
		}
		go func() { // served ones get something at once: the last flow there is
			_, err := stream.Recv()
			outcomes <- outcome{status.Code(err) == codes.ResourceExhausted}
		}()
	}
	timeout := time.After(30 * time.Second)
	for range n {
		select {
		case o := <-outcomes:
			if o.refused {
				refused++
			} else {
				served++
			}
		case <-timeout:
			return served, refused
		}
	}
	return served, refused
}

// spoof sends a datagram in another's name.
func (p *proof) spoof(from party, source, target netip.AddrPort) {
	var fd int
	err := machine.InNamespace(from.netns, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	defer unix.Close(fd)
	src, dst := source.Addr().As4(), target.Addr().As4()
	packet := append([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, src[:]...) // the kernel sums it up
	packet = append(append(packet, dst[:]...), byte(source.Port()>>8), byte(source.Port()), byte(target.Port()>>8), byte(target.Port()), 0, 8, 0, 0)
	if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: dst}); err != nil {
		p.t.Fatal(err)
	}
}

// flood sends a datagram to each of these ports.
func (p *proof) flood(from party, to netip.Addr, first, last int) {
	var c net.PacketConn
	err := machine.InNamespace(from.netns, func() (err error) {
		c, err = net.ListenPacket("udp", ":0")
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	for port := first; port < last; port++ {
		_, err := c.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, uint16(port))))
		if err != nil && !errors.Is(err, syscall.ENOBUFS) && !errors.Is(err, syscall.EPERM) {
			p.t.Fatal(err)
		}
	}
}

// quiet reports whether agents see nothing new.
func (p *proof) quiet(ctx context.Context) string {
	seen := func() (n uint64) {
		for _, node := range p.st.Nodes {
			conn, err := grpc.NewClient("unix://"+p.flowSocket(node.Name), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				p.t.Fatal(err)
			}
			res, err := observer.NewObserverClient(conn).ServerStatus(ctx, &observer.ServerStatusRequest{})
			conn.Close()
			if err != nil {
				p.t.Fatal(err)
			}
			n += res.GetSeenFlows()
		}
		return n
	}
	before := seen()
	time.Sleep(300 * time.Millisecond)
	if now := seen(); now > before+50 {
		return fmt.Sprintf("%d flows were recorded meanwhile", now-before)
	}
	return ""
}

// residents is how much memory processes hold.
func residents(t *testing.T, pids map[string]int) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for name, pid := range pids {
		if pid == 0 {
			continue
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			t.Fatal(err)
		}
		pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = pages * int64(os.Getpagesize())
	}
	return out
}
