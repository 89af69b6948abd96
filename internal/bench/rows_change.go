package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// probe is a stream of small UDP datagrams from a client pod to a server pod. It knows when each
// was sent and which arrived, so that the moment a verdict changed is known to the distance of
// two datagrams.
type probe struct {
	begin time.Time
	every time.Duration

	mu      sync.Mutex
	sent    []time.Duration // since begin
	arrived []time.Duration // 0 if not
	stop    bool
}

func (p *probe) stopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stop
}

func udpSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	tv := unix.Timeval{Usec: 100_000}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// start runs both ends until end is called, which returns their errors.
func (p *probe) start(way path) (end func() error, err error) {
	ready := make(chan error, 1)
	done := make(chan error, 2)
	go func() {
		done <- way.server.do(func() error {
			fd, err := udpSocket()
			if err == nil {
				defer unix.Close(fd)
				err = unix.Bind(fd, &unix.SockaddrInet4{Port: flowPort, Addr: way.to.As4()})
			}
			ready <- err
			buf := make([]byte, 64)
			for err == nil && !p.stopped() {
				n, _, rerr := unix.Recvfrom(fd, buf, 0)
				if rerr == unix.EAGAIN || rerr == unix.EINTR {
					continue
				}
				if rerr != nil || n != 8 {
					return fmt.Errorf("receive %d bytes: %w", n, rerr)
				}
				at := time.Since(p.begin)
				p.mu.Lock()
				if seq := binary.BigEndian.Uint64(buf); seq < uint64(len(p.arrived)) {
					p.arrived[seq] = at
				}
				p.mu.Unlock()
			}
			return err
		})
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	go func() {
		done <- way.client.do(func() error {
			fd, err := udpSocket()
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: flowPort, Addr: way.to.As4()}); err != nil {
				return err
			}
			buf := make([]byte, 8)
			for seq := uint64(0); !p.stopped(); seq++ {
				binary.BigEndian.PutUint64(buf, seq)
				p.mu.Lock()
				p.sent, p.arrived = append(p.sent, time.Since(p.begin)), append(p.arrived, 0)
				p.mu.Unlock()
				if _, err := unix.Write(fd, buf); err != nil {
					return err
				}
				time.Sleep(p.every)
			}
			return nil
		})
	}()
	return func() error {
		p.mu.Lock()
		p.stop = true
		p.mu.Unlock()
		return errors.Join(<-done, <-done)
	}, nil
}

// verdict waits until datagrams sent after a moment are evaluated by the new verdict for good, and
// returns how long after it the first of these was sent or, if allowed, arrived. mixed counts
// datagrams after it that were evaluated by the old one again.
func (p *probe) verdict(ctx context.Context, after time.Duration, allowed bool) (took time.Duration, mixed int, err error) {
	const stable = 25 // datagrams in a row
	for deadline := time.Now().Add(10 * time.Second); ; {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		if time.Now().After(deadline) {
			return 0, 0, fmt.Errorf("the verdict did not change to allowed=%v within 10 s", allowed)
		}
		time.Sleep(5 * time.Millisecond)
		now := time.Since(p.begin)
		p.mu.Lock()
		row, first := 0, time.Duration(-1)
		mixed = 0
		for i := range p.sent {
			if p.sent[i] < after || p.sent[i] > now-10*time.Millisecond {
				continue // too early, or perhaps still under way
			}
			if (p.arrived[i] != 0) != allowed {
				if first >= 0 {
					mixed++
				}
				row = 0
				continue
			}
			if first < 0 {
				first = p.sent[i]
				if allowed {
					first = p.arrived[i]
				}
			}
			row++
		}
		p.mu.Unlock()
		if row >= stable {
			return first - after, mixed, nil
		}
	}
}

// forget drops what was seen so far, so that a look at it stays quick.
func (p *probe) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.sent {
		p.sent[i] = -1
	}
}

const (
	changeIdentities = 6000
	changeEndpoints  = 30
)

// changePolicy is the policy that is switched: the server takes the client's datagrams or not, and
// in both versions those of all other pods of the cluster.
func changePolicy(allowed bool) string {
	who := "app: absent"
	if allowed {
		who = "app: client"
	}
	return `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: switched, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: server}}
  ingress:
  - fromEndpoints: [{matchLabels: {` + who + `}}]
  - fromEndpoints: [{matchExpressions: [{key: app, operator: NotIn, values: [client, server]}]}]
    toPorts: [{ports: [{port: "9", protocol: TCP}]}]
`
}

func (b *bencher) policyChange(ctx context.Context, r *testbed) (err error) {
	identities := pick(b, changeIdentities, 1000)
	if err := r.etcd.put(ctx, 2*identities, identityKeys); err != nil {
		return err
	}
	if err := r.etcd.put(ctx, identities, func(i int) (string, string) { return remotePod(i, identities) }); err != nil {
		return err
	}
	if err := errors.Join(r.writePolicy("many.yaml", manyOthers(flowRules)), r.writePolicy("switched.yaml", changePolicy(false))); err != nil {
		return err
	}
	if err := r.startAgents(ctx); err != nil {
		return err
	}
	n := r.nodes[0]
	client, err := n.addPod("client", "client")
	if err != nil {
		return err
	}
	// All of them are selected by the policy that changes.
	var server *pod
	for i := range changeEndpoints - 1 {
		if server, err = n.addPod(fmt.Sprintf("server%d", i), "server"); err != nil {
			return err
		}
	}
	if err := n.waitAddresses(ctx, identities); err != nil {
		return err
	}
	if err := r.checkRules(ctx, identities); err != nil {
		return err
	}
	p := &probe{begin: time.Now(), every: 200 * time.Microsecond}
	end, err := p.start(path{client: client.ns, server: server.ns, to: server.ipv4})
	if err != nil {
		return err
	}
	var allow, deny []time.Duration
	mixed := 0
	err = func() error {
		if _, _, err := p.verdict(ctx, 0, false); err != nil {
			return err
		}
		for i := range 2 * pick(b, 100, 20) {
			allowed := i%2 == 0
			// Out of step with whatever ticks in the agent.
			time.Sleep(time.Duration(i*37%100) * time.Millisecond / 2)
			p.forget()
			at := time.Since(p.begin)
			if err := r.writePolicy("switched.yaml", changePolicy(allowed)); err != nil {
				return err
			}
			took, m, err := p.verdict(ctx, at, allowed)
			if err != nil {
				return err
			}
			mixed += m
			if allowed {
				allow = append(allow, took)
			} else {
				deny = append(deny, took)
			}
		}
		return nil
	}()
	if err = errors.Join(err, end()); err != nil {
		return err
	}
	note := fmt.Sprintf("the file is renamed into place at 0; %d identities, %d endpoints, %d rules more", identities, changeEndpoints, flowRules)
	b.add(Figure{Row: "change", Name: "allowed: first datagram through, p50", Unit: "ms", Value: ms(median(allow)), First: 100, Far: 2, Samples: len(allow), Note: note})
	b.add(Figure{Row: "change", Name: "allowed: first datagram through, p99", Unit: "ms", Value: ms(p99(allow)), First: 100, Far: 20, Samples: len(allow)})
	b.add(Figure{Row: "change", Name: "denied, flow established: first one dropped, p50", Unit: "ms", Value: ms(median(deny)), First: 100, Far: 2, Samples: len(deny)})
	b.add(Figure{Row: "change", Name: "denied, flow established: first one dropped, p99", Unit: "ms", Value: ms(p99(deny)), First: 100, Far: 20, Samples: len(deny)})
	b.add(Figure{Row: "change", Name: "datagrams that met the old rules after the new", Value: float64(mixed), Samples: len(allow) + len(deny)})
	return nil
}

// manyOthers returns about n rules for the servers and clients that have nothing to do with the one
// that changes.
func manyOthers(n int) string {
	// Egress of the client to the server must be open: only the server's side is switched.
	return manyRules(n) + `---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: client-out, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress:
  - toEndpoints: [{matchLabels: {app: server}}]
`
}
