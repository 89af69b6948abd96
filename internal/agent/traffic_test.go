package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/testenv"
)

// roomy makes the socket's buffers so large that a test process that gets no processor for seconds
// does not lose what the network delivered.
func roomy(c *net.UDPConn) {
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		})
	}
}

// echoServer answers datagrams and connections at an address, and counts them.
type echoServer struct {
	datagrams, connections atomic.Int64
}

func serveEcho(t testing.TB, ns namespace, at netip.AddrPort) *echoServer {
	t.Helper()
	s := &echoServer{}
	udp := listenUDP(t, ns, at)
	if udp == nil {
		t.FailNow()
	}
	roomy(udp)
	var tcp net.Listener
	if err := ns.Do(func() (err error) { tcp, err = net.Listen("tcp", at.String()); return err }); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		udp.Close()
		tcp.Close()
		wg.Wait()
	})
	wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := udp.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				s.datagrams.Add(1)
				_, _ = udp.WriteToUDPAddrPort(buf[:n], from)
			}
		}
	})
	wg.Go(func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			s.connections.Add(1)
			wg.Go(func() {
				defer c.Close()
				stop := context.AfterFunc(t.Context(), func() { c.Close() })
				defer stop()
				_, _ = io.Copy(c, c)
			})
		}
	})
	return s
}

// flow is a stream of datagrams that are answered one by one.
type flow struct {
	name          string
	conn          *net.UDPConn
	stop          chan struct{}
	sending, done sync.WaitGroup

	mu   sync.Mutex
	sent []time.Time
	got  map[uint64]bool
}

// startFlow sends a datagram every few milliseconds until finish.
func startFlow(t testing.TB, name string, ns namespace, to netip.AddrPort) *flow {
	t.Helper()
	f := &flow{name: name, conn: dialUDP(t, ns, to), stop: make(chan struct{}), got: map[uint64]bool{}}
	if f.conn == nil {
		t.FailNow()
	}
	roomy(f.conn)
	f.sending.Go(func() {
		tick := time.NewTicker(4 * time.Millisecond)
		defer tick.Stop()
		msg := make([]byte, 64)
		for {
			select {
			case <-f.stop:
				return
			case <-tick.C:
			}
			f.mu.Lock()
			binary.BigEndian.PutUint64(msg, uint64(len(f.sent)))
			f.sent = append(f.sent, time.Now())
			f.mu.Unlock()
			_, _ = f.conn.Write(msg) // a refusal of an earlier one may be returned here
		}
	})
	f.done.Go(func() {
		buf := make([]byte, 128)
		for {
			n, err := f.conn.Read(buf)
			if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			if err == nil && n >= 8 {
				f.mu.Lock()
				f.got[binary.BigEndian.Uint64(buf)] = true
				f.mu.Unlock()
			}
		}
	})
	return f
}

func (f *flow) counts() (sent, got int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sent), len(f.got)
}

// finish stops sending, waits for what is on its way, and returns when the lost ones were sent.
func (f *flow) finish() (sent int, lost []time.Time) {
	close(f.stop)
	f.sending.Wait() // or the connection could be closed under the last one
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if s, g := f.counts(); s == g {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	f.conn.Close()
	f.done.Wait()
	for i, at := range f.sent {
		if !f.got[uint64(i)] {
			lost = append(lost, at)
		}
	}
	return len(f.sent), lost
}

// startStream keeps a TCP connection busy with questions and answers until the function returned is
// called, which returns how many there were.
func startStream(t testing.TB, ns namespace, to netip.AddrPort) (finish func() (int, error)) {
	t.Helper()
	var c net.Conn
	if err := ns.Do(func() (err error) { c, err = net.DialTimeout("tcp", to.String(), 5*time.Second); return err }); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	n := 0
	go func() {
		done <- func() error {
			tick := time.NewTicker(4 * time.Millisecond)
			defer tick.Stop()
			buf := make([]byte, 64)
			for {
				select {
				case <-stop:
					return nil
				case <-tick.C:
				}
				_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // a busy machine may stand still for seconds
				if _, err := c.Write(buf); err != nil {
					return err
				}
				if _, err := io.ReadFull(c, buf); err != nil {
					return err
				}
				n++
			}
		}()
	}()
	return func() (int, error) {
		close(stop)
		err := <-done
		c.Close()
		return n, err
	}
}

// startConnecting opens one TCP connection after another, each with a question and its answer. A
// connection whose first packet was lost needs a second for the kernel to send it again: that
// counts as a loss.
func startConnecting(t testing.TB, ns namespace, to netip.AddrPort) (finish func() (int, []error)) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	n := 0
	var errs []error
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			began := time.Now()
			err := once(ns, to, 10*time.Second)
			if err != nil {
				errs = append(errs, fmt.Errorf("at %s: %w", began.Format("15:04:05.000"), err))
			}
			n++
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return func() (int, []error) {
		close(stop)
		<-done
		return n, errs
	}
}

// resend is the least time that it takes to find out that a packet was lost (TCP_RTO_MIN). What is
// sent again sooner is a probe for an answer that a busy machine delays.
const resend = 200 * time.Millisecond

// once makes one connection with one question and its answer. It fails, too, if a packet had to be
// sent again: time alone says nothing on a busy machine.
func once(ns namespace, to netip.AddrPort, timeout time.Duration) error {
	began := time.Now()
	var c net.Conn
	if err := ns.Do(func() (err error) { c, err = net.DialTimeout("tcp", to.String(), timeout); return err }); err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte("question")); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
		return err
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	var ierr error
	if err := raw.Control(func(fd uintptr) { info, ierr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); err != nil {
		return err
	}
	if took := time.Since(began); ierr == nil && info.Total_retrans > 0 && took >= resend {
		ierr = fmt.Errorf("%d packets were sent again within %v", info.Total_retrans, took)
	}
	return ierr
}

// both returns the pod's addresses with a port.
func (p *machinePod) both(port uint16) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(p.ip4, port), netip.AddrPortFrom(p.ip6, port)}
}

// TestRestartUnderTraffic ends the agent again and again, mostly by kill, sometimes politely,
// sometimes with another configuration afterwards, while allowed and forbidden traffic goes on.
// No allowed packet may get lost and no forbidden one get through.
func TestRestartUnderTraffic(t *testing.T) {
	for name, flags := range storeFlags() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, _ := newNode(t)
			n.flags = append(n.flags, flags(t)...)
			restartUnderTraffic(t, n, count(25, 5, 500))
		})
	}
}

func restartUnderTraffic(t *testing.T, n *machineNode, restarts int) {
	n.policy("web.yaml", denyWeb)
	n.start()
	web := n.attached("web", map[string]string{"app": "web"})
	front := n.attached("front", map[string]string{"app": "front"})
	intruder := n.attached("intruder", map[string]string{"app": "intruder"})
	identity := front.endpoint().Status.Identity.ID

	var flows []*flow
	var streams []func() (int, error)
	var connecting []func() (int, []error)
	var forbidden []*echoServer
	var knocking []*flow
	knockStop := make(chan struct{})
	var knocks sync.WaitGroup
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
		flows = append(flows, startFlow(t, "front to web "+to.String(), front.ns, to))
		streams = append(streams, startStream(t, front.ns, to))
		connecting = append(connecting, startConnecting(t, front.ns, to))
		// Who may not: another pod to the same port, and the same pod to another port.
		knocking = append(knocking, startFlow(t, "intruder to web "+to.String(), intruder.ns, to))
	}
	for _, to := range web.both(81) {
		forbidden = append(forbidden, serveEcho(t, web.ns, to))
		knocking = append(knocking, startFlow(t, "front to web "+to.String(), front.ns, to))
		knocks.Go(func() { // new connections, too
			for {
				select {
				case <-knockStop:
					return
				default:
					_ = once(front.ns, to, 50*time.Millisecond)
				}
			}
		})
	}
	for i := range restarts {
		switch {
		case i%5 == 4:
			n.stop()
		default:
			n.kill()
		}
		if i%6 == 5 { // other programs, replaced in place
			if err := os.WriteFile(filepath.Join(n.dir, "config", "bpf-ct-timeout-regular-any"), fmt.Appendf(nil, "%ds", 61+i), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		n.start()
		if ep := front.endpoint(); ep.Status.Identity.ID != identity {
			t.Errorf("restart %d: the identity of front is %d, was %d", i, ep.Status.Identity.ID, identity)
		}
		if t.Failed() {
			break
		}
	}
	close(knockStop)
	knocks.Wait()
	for _, f := range flows {
		sent, lost := f.finish()
		t.Logf("%s: %d datagrams, %d lost", f.name, sent, len(lost))
		if len(lost) > 0 {
			t.Errorf("%s: %d of %d datagrams got lost, the first sent at %s", f.name, len(lost), sent, lost[0].UTC().Format("15:04:05.000"))
		}
	}
	for _, finish := range streams {
		if k, err := finish(); err != nil || k == 0 {
			t.Errorf("the connection broke after %d answers: %v", k, err)
		}
	}
	for _, finish := range connecting {
		k, errs := finish()
		t.Logf("%d connections", k)
		if len(errs) > 0 {
			t.Errorf("%d of %d connections failed: %v", len(errs), k, errors.Join(errs[:min(3, len(errs))]...))
		}
	}
	for _, f := range knocking {
		close(f.stop)
		f.sending.Wait()
		f.conn.Close()
		f.done.Wait()
		if sent, got := f.counts(); got > 0 || sent == 0 {
			t.Errorf("%s: %d of %d forbidden datagrams were answered", f.name, got, sent)
		}
	}
	for _, s := range forbidden {
		if d, c := s.datagrams.Load(), s.connections.Load(); d+c > 0 {
			t.Errorf("%d forbidden datagrams and %d connections got through", d, c)
		}
	}
	n.stop()
}

// TestRulesBeforePods: a pod that is attached while the agent still reads a large directory of
// policies must not be open until it has.
func TestRulesBeforePods(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	for i := range 300 {
		n.policy(fmt.Sprintf("a-%03d.yaml", i), fmt.Sprintf(`apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: other-%d, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: other-%d}}
  ingress: [{fromEndpoints: [{matchLabels: {app: front}}]}]
`, i, i))
	}
	n.policy("web.yaml", denyWeb)
	n.start()
	intruder, front := n.attached("intruder", map[string]string{"app": "intruder"}), n.attached("front", map[string]string{"app": "front"})
	web := n.newPod("web", map[string]string{"app": "web"})
	for range count(4, 2, 50) {
		n.kill()
		n.launch()
		if err := web.add(); err != nil { // it waits for the agent's API
			t.Fatal(err)
		}
		var servers []*net.UDPConn
		for _, to := range web.both(80) {
			servers = append(servers, listenUDP(t, web.ns, to))
		}
		for range 50 {
			for _, to := range web.both(80) {
				c := dialUDP(t, intruder.ns, to)
				_, _ = c.Write([]byte("may I"))
				c.Close()
			}
			time.Sleep(2 * time.Millisecond)
		}
		n.ready()
		for i, s := range servers {
			_ = s.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if _, from, err := s.ReadFromUDP(make([]byte, 64)); err == nil {
				t.Errorf("a datagram of %v reached the pod before its rules did", from)
			}
			// The silence shows something only if who may is heard.
			c := dialUDP(t, front.ns, web.both(80)[i])
			testenv.Eventually(t, 20*time.Second, func() string {
				if _, err := c.Write([]byte("I may")); err != nil {
					return err.Error()
				}
				_ = s.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
				buf := make([]byte, 64)
				if n, from, err := s.ReadFromUDP(buf); err != nil || string(buf[:n]) != "I may" {
					return fmt.Sprintf("no datagram of a pod that may comes: %q of %v, %v", buf[:n], from, err)
				}
				return ""
			})
			c.Close()
			s.Close()
		}
		if err := web.del(); err != nil {
			t.Fatal(err)
		}
		web.renew()
	}
}
