package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/peer"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// connection identifies a TCP connection between two pods: the ports of both ends.
type connection struct{ from, to uint32 }

// sniffOpenings listens on a pod's interface and returns a function that returns which TCP
// connections over IPv4 its packets have tried to open so far.
func sniffOpenings(t testing.TB, pod *machinePod) func() map[connection]int {
	t.Helper()
	return sniff(t, pod.ns, func(frame []byte) (c connection, ok bool) {
		if len(frame) < 14+20+20 || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP || frame[14+9] != unix.IPPROTO_TCP {
			return c, false
		}
		header := 14 + int(frame[14]&15)*4
		if len(frame) < header+20 {
			return c, false
		}
		tcp := frame[header:]
		c = connection{uint32(binary.BigEndian.Uint16(tcp)), uint32(binary.BigEndian.Uint16(tcp[2:]))}
		return c, tcp[13]&0x12 == 0x02 && [4]byte(frame[26:30]) == pod.ip4.As4() // SYN without ACK
	})
}

// flowsOf follows the flows that a server reports, until the test ends.
type flowsOf struct {
	mu   sync.Mutex
	list []*flowpb.Flow
	lost uint64
}

func followFlows(t testing.TB, conn *grpc.ClientConn, req *observer.GetFlowsRequest) *flowsOf {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req.Follow = true
	stream, err := observer.NewObserverClient(conn).GetFlows(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	out := &flowsOf{}
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for {
			res, err := stream.Recv()
			if err != nil {
				return
			}
			out.mu.Lock()
			out.lost += res.GetLostEvents().GetNumEventsLost()
			if f := res.GetFlow(); f != nil {
				out.list = append(out.list, f)
			}
			out.mu.Unlock()
		}
	}()
	return out
}

// of returns the flows over IPv4 with TCP between two pods that were made of a kind of event.
func (o *flowsOf) of(kind int32, from, to string) (out []*flowpb.Flow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.list {
		if f.GetEventType().GetType() == kind && f.GetSource().GetPodName() == from && f.GetDestination().GetPodName() == to && f.GetL4().GetTCP() != nil &&
			f.GetIP().GetIpVersion() == flowpb.IPVersion_IPv4 {
			out = append(out, f)
		}
	}
	return out
}

// lostEvents is how many events the server says it has lost.
func (o *flowsOf) lostEvents() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost
}

// openings are the connections that flows are about, each with how many of the flows.
func openings(list []*flowpb.Flow, verdict flowpb.Verdict) map[connection]int {
	out := map[connection]int{}
	for _, f := range list {
		if f.GetVerdict() == verdict {
			out[connection{f.GetL4().GetTCP().GetSourcePort(), f.GetL4().GetTCP().GetDestinationPort()}]++
		}
	}
	return out
}

// flowConn connects to the node's socket of flows.
func (n *machineNode) flowConn(path string) *grpc.ClientConn {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	return conn
}

// TestFlows runs two agents and reads from both what they see: connections that the policy allows
// and refuses appear as flows with both sides' names, verdicts and the policy, and they are just
// those that a capture in the pods has seen. A client without a certificate reads nothing.
func TestFlows(t *testing.T) {
	t.Parallel()
	_, n1, n2 := nodesWithStore(t, "--enable-hubble")
	n1.race = true
	ours := kvstoretest.NewAuthority(t)
	cert, key := ours.Issue(t, "n1.default.hubble-grpc.cilium.io")
	for name, data := range map[string][]byte{"crt": cert, "key": key, "ca": ours.PEM()} {
		if err := os.WriteFile(n1.path(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--hubble-socket-path", n.path("run/hubble.sock"))
	}
	n1.flags = append(n1.flags, "--hubble-listen-address", ":4244", "--hubble-tls-cert-file", n1.path("crt"), "--hubble-tls-key-file", n1.path("key"),
		"--hubble-tls-client-ca-files", n1.path("ca"))
	n2.flags = append(n2.flags, "--hubble-event-buffer-capacity", "0") // records only while a client follows
	n1.policy("web.yaml", denyWeb)
	n1.start()
	n2.start()
	r := &flowsTest{
		t: t, n1: n1, n2: n2, web: n1.attached("web", map[string]string{"app": "web"}),
		front: n2.attached("front", map[string]string{"app": "front"}), intruder: n2.attached("intruder", map[string]string{"app": "intruder"}),
	}
	for _, to := range r.web.both(80) {
		serveEcho(t, r.web.ns, to)
	}
	r.to80, r.to81 = r.web.both(80)[0], r.web.both(81)[0]
	controllers.Eventually(t, time.Minute, func() string { // every node knows everybody
		if err := once(r.front.ns, r.to80, 5*time.Second); err != nil {
			return err.Error()
		}
		return ""
	})

	here := n1.flowConn(n1.path("run/hubble.sock"))
	r.follow(here, n2.flowConn(n2.path("run/hubble.sock")))
	r.ends(r.connections())
	r.names()
	r.ofReason(here)
	r.authentication(here, n1.ns, ours)
	if st, err := n1.client.Health(t.Context(), false); err != nil || st.Hubble.State != "Ok" {
		t.Errorf("the status says %v, %v", st.Hubble, err)
	}
	info, err := os.Stat(n1.path("run/hubble.sock"))
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	n1.stop()
	if _, err := os.Stat(n1.path("run/hubble.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket outlives the agent: %v", err)
	}
}

// flowsTest is two nodes of which TestFlows reads flows.
type flowsTest struct {
	t                    *testing.T
	n1, n2               *machineNode
	web, front, intruder *machinePod
	to80, to81           netip.AddrPort // of web
	receiver, sender     *flowsOf
}

// follow has the flows of both nodes be followed.
func (r *flowsTest) follow(here, there *grpc.ClientConn) {
	st, err := observer.NewObserverClient(there).ServerStatus(r.t.Context(), &observer.ServerStatusRequest{})
	if err != nil || st.GetSeenFlows() != 0 {
		r.t.Errorf("while no client follows, the node that keeps none has seen %v, %v", st, err)
	}
	r.receiver, r.sender = followFlows(r.t, here, &observer.GetFlowsRequest{}), followFlows(r.t, there, &observer.GetFlowsRequest{})
	// A stream exists when its server has admitted it: what happens from then on it reports.
	probe := func(o *flowsOf, kind int32) func() string {
		return func() string {
			_ = once(r.intruder.ns, r.to81, 20*time.Millisecond)
			if len(o.of(kind, "intruder", "web")) == 0 {
				return "it does not follow yet"
			}
			return ""
		}
	}
	controllers.Eventually(r.t, time.Minute, probe(r.receiver, flows.EventVerdict))
	controllers.Eventually(r.t, time.Minute, probe(r.sender, flows.EventVerdict))
}

// openedTo are the connections to a port.
func openedTo(seen map[connection]int, port uint32) map[connection]int {
	out := maps.Clone(seen)
	maps.DeleteFunc(out, func(c connection, _ int) bool { return c.to != port })
	return out
}

// sameOpenings says in which connections flows and a capture differ.
func sameOpenings(what string, list []*flowpb.Flow, verdict flowpb.Verdict, want map[connection]int) string {
	got := openings(list, verdict)
	for c := range want {
		if got[c] == 0 {
			return fmt.Sprintf("%s: the capture has %v and there is no flow of it; %d of %d", what, c, len(got), len(want))
		}
	}
	for c := range got {
		if want[c] == 0 && c.to != 81 { // those that probed
			return fmt.Sprintf("%s: a flow shows %v and the capture does not have it", what, c)
		}
	}
	return ""
}

// connections opens connections and compares the flows with a capture: no connection more and none
// less. It returns those that were allowed.
func (r *flowsTest) connections() map[connection]int {
	fromFront, fromIntruder := sniffOpenings(r.t, r.front), sniffOpenings(r.t, r.intruder)
	const times = 20
	for range times {
		if err := once(r.front.ns, r.to80, 10*time.Second); err != nil {
			r.t.Error(err)
		}
		_ = once(r.front.ns, r.to81, 20*time.Millisecond)
		_ = once(r.intruder.ns, r.to80, 20*time.Millisecond)
	}
	controllers.Eventually(r.t, time.Minute, func() string {
		f, i := fromFront(), fromIntruder()
		for _, row := range []struct {
			what    string
			list    []*flowpb.Flow
			verdict flowpb.Verdict
			want    map[connection]int
		}{
			{"allowed, at the receiver", r.receiver.of(flows.EventVerdict, "front", "web"), flowpb.Verdict_FORWARDED, openedTo(f, 80)},
			{"refused port", r.receiver.of(flows.EventVerdict, "front", "web"), flowpb.Verdict_DROPPED, openedTo(f, 81)},
			{"refused pod", r.receiver.of(flows.EventVerdict, "intruder", "web"), flowpb.Verdict_DROPPED, openedTo(i, 80)},
			{"drops of the refused pod", r.receiver.of(flows.EventDrop, "intruder", "web"), flowpb.Verdict_DROPPED, openedTo(i, 80)},
			{"all, at the sender", r.sender.of(flows.EventVerdict, "front", "web"), flowpb.Verdict_FORWARDED, f},
		} {
			if wrong := sameOpenings(row.what, row.list, row.verdict, row.want); wrong != "" {
				return wrong
			}
		}
		return ""
	})
	allowed := openings(r.receiver.of(flows.EventVerdict, "front", "web"), flowpb.Verdict_FORWARDED)
	for c, n := range allowed {
		if n != 1 {
			r.t.Errorf("%d flows show the one connection %v", n, c)
		}
	}
	if len(allowed) != times {
		r.t.Errorf("%d connections were allowed, want %d", len(allowed), times)
	}
	return allowed
}

// ends checks that each connection that was allowed ends, at both nodes and from both sides, and
// that others have no end; however much was sent, its flows are few.
func (r *flowsTest) ends(allowed map[connection]int) {
	ends := func(o *flowsOf, from, to string) map[connection]int {
		list := slices.DeleteFunc(o.of(flows.EventTrace, from, to), func(f *flowpb.Flow) bool { return !f.GetL4().GetTCP().GetFlags().GetFIN() })
		return openings(list, flowpb.Verdict_FORWARDED)
	}
	controllers.Eventually(r.t, time.Minute, func() string {
		for _, o := range []*flowsOf{r.receiver, r.sender} {
			forth, back := ends(o, "front", "web"), ends(o, "web", "front")
			for c := range allowed {
				if forth[c] != 1 || back[connection{c.to, c.from}] != 1 {
					return fmt.Sprintf("%d and %d flows show the ends of the connection %v", forth[c], back[connection{c.to, c.from}], c)
				}
			}
		}
		return ""
	})
	for c, n := range ends(r.receiver, "front", "web") {
		if allowed[c] != 1 {
			r.t.Errorf("%d ends of the connection %v, which was not allowed", n, c)
		}
	}
	for c, n := range openings(append(r.receiver.of(flows.EventTrace, "front", "web"), r.receiver.of(flows.EventTrace, "web", "front")...), flowpb.Verdict_FORWARDED) {
		if n > 3 {
			r.t.Errorf("%d flows of packets of the connection %v in one direction", n, c)
		}
	}
	if at, from := r.receiver.lostEvents(), r.sender.lostEvents(); at+from > 0 {
		r.t.Errorf("%d and %d events were lost", at, from)
	}
}

// deviceOf says whether a flow at the receiver names the interface that has its number there.
func (r *flowsTest) deviceOf(f *flowpb.Flow) bool {
	var device *net.Interface
	err := r.n1.ns.Do(func() (err error) { device, err = net.InterfaceByIndex(int(f.GetInterface().GetIndex())); return err })
	return err == nil && device.Name == f.GetInterface().GetName()
}

// ofReason checks that the node selects flows by the reason for which it has dropped them.
func (r *flowsTest) ofReason(here *grpc.ClientConn) {
	for reason, want := range map[flowpb.DropReason]bool{flowpb.DropReason_POLICY_DENIED: true, flowpb.DropReason_AUTH_REQUIRED: false} {
		stream, err := observer.NewObserverClient(here).GetFlows(r.t.Context(), &observer.GetFlowsRequest{
			Number: 10, Whitelist: []*flowpb.FlowFilter{{DropReasonDesc: []flowpb.DropReason{reason}}},
		})
		if err != nil {
			r.t.Fatal(err)
		}
		found := 0
		for {
			res, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				r.t.Fatalf("%v: %v", reason, err)
			}
			if f := res.GetFlow(); f != nil {
				found++
				if f.GetDropReasonDesc() != reason {
					r.t.Errorf("asked for %v, got %v", reason, f)
				}
			}
		}
		if found > 0 != want {
			r.t.Errorf("%d flows were dropped for %v", found, reason)
		}
	}
}

// names checks what the flows say besides.
func (r *flowsTest) names() {
	byPolicy := func(list []*flowpb.Policy) bool {
		return len(list) == 1 && list[0].GetName() == "web" && list[0].GetNamespace() == "default"
	}
	for _, f := range r.receiver.of(flows.EventVerdict, "front", "web") {
		src, dst := f.GetSource(), f.GetDestination()
		if src.GetNamespace() != "default" || int(src.GetIdentity()) != r.front.endpoint().Status.Identity.ID || !slices.Contains(src.GetLabels(), "k8s:app=front") ||
			src.GetID() != 0 || dst.GetNamespace() != "default" || int(dst.GetID()) != r.web.endpoint().ID || !slices.Contains(dst.GetLabels(), "k8s:app=web") ||
			f.GetNodeName() != "default/n1" || f.GetTrafficDirection() != flowpb.TrafficDirection_INGRESS {
			r.t.Fatalf("a flow between the pods is %v", f)
		}
		if src.GetClusterName() != "default" || dst.GetClusterName() != "default" || f.GetInterface().GetIndex() == 0 || !r.deviceOf(f) {
			r.t.Errorf("a flow without its clusters, or the name of its interface: %v", f)
		}
		if f.GetVerdict() == flowpb.Verdict_FORWARDED && !byPolicy(f.GetIngressAllowedBy()) {
			r.t.Errorf("allowed by %v", f.GetIngressAllowedBy())
		}
		if f.GetVerdict() == flowpb.Verdict_DROPPED && f.GetDropReasonDesc() != flowpb.DropReason_POLICY_DENIED {
			r.t.Errorf("refused for %v", f.GetDropReasonDesc())
		}
	}
	for _, f := range r.sender.of(flows.EventVerdict, "front", "web") {
		if f.GetNodeName() != "default/n2" || f.GetTrafficDirection() != flowpb.TrafficDirection_EGRESS || int(f.GetSource().GetID()) != r.front.endpoint().ID || f.GetDestination().GetID() != 0 {
			r.t.Fatalf("a flow at the sender is %v", f)
		}
	}
}

// authentication checks that nodes notify each other, and that on the network only those who have a
// certificate are served.
func (r *flowsTest) authentication(here *grpc.ClientConn, ns1 namespace, ours kvstoretest.Authority) {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	peers, err := peer.NewPeerClient(here).Notify(ctx, &peer.NotifyRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	nodes := map[string]string{}
	for len(nodes) < 2 {
		n, err := peers.Recv()
		if err != nil {
			r.t.Fatalf("after %v: %v", nodes, err)
		}
		nodes[n.GetName()] = n.GetTls().GetServerName()
	}
	if nodes["default/n1"] != "n1.default.hubble-grpc.cilium.io" || nodes["default/n2"] == "" {
		r.t.Errorf("nodes: %v", nodes)
	}
	ask := func(creds credentials.TransportCredentials) error {
		conn, err := grpc.NewClient("passthrough:///127.0.0.1:4244", grpc.WithTransportCredentials(creds),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (c net.Conn, err error) {
				err = ns1.Do(func() error { c, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr); return err })
				return c, err
			}))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = observer.NewObserverClient(conn).GetNamespaces(ctx, &observer.GetNamespacesRequest{})
		return err
	}
	client := func(a kvstoretest.Authority) credentials.TransportCredentials {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ours.PEM())
		cert, key := a.Issue(r.t, "relay", x509.ExtKeyUsageClientAuth)
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			r.t.Fatal(err)
		}
		return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: nodes["default/n1"], Certificates: []tls.Certificate{pair}})
	}
	if err := ask(client(ours)); err != nil {
		r.t.Errorf("a client with a certificate: %v", err)
	}
	if ask(client(kvstoretest.NewAuthority(r.t))) == nil || ask(insecure.NewCredentials()) == nil {
		r.t.Error("clients without a certificate get flows")
	}
}

// TestFlowsAreServedWhenCertificatesCome: an agent whose certificates are not there yet works, says
// so, and serves flows on TCP once they are.
func TestFlowsAreServedWhenCertificatesCome(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	ca := kvstoretest.NewAuthority(t)
	cert, key := ca.Issue(t, "n1")
	n.flags = append(n.flags, "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"), "--hubble-listen-address", "127.0.0.1:4244",
		"--hubble-tls-cert-file", n.path("crt"), "--hubble-tls-key-file", n.path("key"), "--hubble-tls-client-ca-files", n.path("ca"))
	n.start()
	controllers.Eventually(t, time.Minute, func() string {
		if p := n.part("flow-server"); p.State != "Warning" {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
	for name, data := range map[string][]byte{"crt": cert, "key": key, "ca": ca.PEM()} {
		if err := os.WriteFile(n.path(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	controllers.Eventually(t, time.Minute, func() string {
		if p := n.part("flow-server"); p.State != "Ok" {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
	n.stop()
}
