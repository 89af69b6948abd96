package flows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-net/hawser/test/cluster/lab"
)

// Kind is how a flow asks.
type Kind string

// The kinds. An established flow is one connection, or one pair of ports, for as long as the
// traffic lasts; of the others every message is a new flow.
const (
	TCPEstablished Kind = "tcp established"
	UDPEstablished Kind = "udp established"
	TCPNew         Kind = "tcp new"
	UDPNew         Kind = "udp new"
)

// Times of a flow.
const (
	establishedEvery = 20 * time.Millisecond
	newEvery         = 60 * time.Millisecond
	// answerWithin is long: what is measured is loss, not the load of the machine.
	answerWithin = 30 * time.Second
	// deniedWithin is how long a flow that must not get through waits.
	deniedWithin = time.Second
)

// Flow is one client that asks one server again and again.
type Flow struct {
	Name    string
	From    *lab.Namespace
	To      netip.AddrPort
	Kind    Kind
	Allowed bool
	// Within is when an answer is given up; 0 for long enough that only what is lost has none.
	Within time.Duration
}

func (f Flow) within() time.Duration {
	if f.Within > 0 {
		return f.Within
	}
	return answerWithin
}

// Result is what became of a flow.
type Result struct {
	Name    string `json:"name"`
	Kind    Kind   `json:"kind"`
	Allowed bool   `json:"allowed"`
	// Sent is the number of messages or, of new TCP flows, of connections tried.
	Sent int `json:"sent"`
	// Lost were not answered although allowed. Wrong arrived although forbidden.
	Lost  int `json:"lost"`
	Wrong int `json:"wrong"`
	// Retransmitted segments of TCP: what was lost and made good, or only late.
	Retransmitted int `json:"retransmitted,omitempty"`
	// Gap is the longest time between two answers of an established flow.
	Gap time.Duration `json:"gap,omitempty"`
	// Why says when and how the first ones failed.
	Why []string `json:"why,omitempty"`
}

// Bad reports whether something happened that must not.
func (r Result) Bad() bool { return r.Lost > 0 || r.Wrong > 0 }

// Traffic is a set of flows that are under way.
type Traffic struct {
	servers *Servers
	began   time.Time
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	clients []*client
}

// Numbers gives flows their numbers, none twice: a message that comes late must not count for
// another flow. Its zero value is ready.
type Numbers struct{ last atomic.Uint32 }

func (n *Numbers) next() uint32 { return n.last.Add(1) }

type client struct {
	Flow
	number  uint32
	servers *Servers
	began   time.Time

	mu      sync.Mutex
	result  Result
	pending map[uint64]time.Time // of established UDP
	last    time.Time
}

// Start opens established flows and starts all of them. Those that are allowed have had an answer
// each on return, or it fails.
func Start(ctx context.Context, servers *Servers, numbers *Numbers, flows []Flow) (*Traffic, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &Traffic{servers: servers, began: time.Now(), cancel: cancel}
	for _, f := range flows {
		c := &client{Flow: f, number: numbers.next(), servers: servers, began: t.began, pending: map[uint64]time.Time{}}
		c.result = Result{Name: f.Name, Kind: f.Kind, Allowed: f.Allowed}
		t.clients = append(t.clients, c)
	}
	started := make(chan error, len(t.clients))
	for _, c := range t.clients {
		t.wg.Go(func() { c.run(ctx, started) })
	}
	var errs []error
	for range t.clients {
		if err := <-started; err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		t.Stop()
		return nil, fmt.Errorf("%d of %d flows do not start: %w", len(errs), len(flows), errors.Join(errs[:min(3, len(errs))]...))
	}
	return t, nil
}

// Stop ends all flows, waits for answers that are on their way, and returns the results in the
// order of the flows.
func (t *Traffic) Stop() []Result {
	t.cancel()
	t.wg.Wait()
	out := make([]Result, 0, len(t.clients))
	for _, c := range t.clients {
		c.mu.Lock()
		if !c.Allowed {
			c.result.Wrong = max(c.result.Wrong, t.servers.Arrived(c.number))
			if c.result.Wrong > 0 && len(c.result.Why) == 0 {
				c.result.Why = []string{"arrived at the server"}
			}
		}
		out = append(out, c.result)
		c.mu.Unlock()
	}
	return out
}

func (c *client) run(ctx context.Context, started chan<- error) {
	switch c.Kind {
	case TCPEstablished, UDPEstablished:
		c.established(ctx, started)
	default:
		c.fresh(ctx, started)
	}
}

func (c *client) network() string {
	if c.Kind == TCPEstablished || c.Kind == TCPNew {
		return "tcp"
	}
	return "udp"
}

// note records a failure.
func (c *client) note(lost int, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.result.Lost += lost
	if len(c.result.Why) < 4 {
		c.result.Why = append(c.result.Why, fmt.Sprintf("%.1fs: %s", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...)))
	}
}

// established keeps one connection, and sends on it without waiting for answers.
func (c *client) established(ctx context.Context, started chan<- error) {
	conn, err := c.From.Dial(c.network(), c.To, c.within())
	if err == nil {
		err = c.exchange(conn, 0, c.within())
	}
	if err != nil {
		started <- fmt.Errorf("%s: %w", c.Name, err)
		return
	}
	started <- nil
	defer lab.Reset(conn)
	c.last = time.Now()
	_ = conn.SetDeadline(time.Time{})
	var reader sync.WaitGroup
	reader.Go(func() { c.answers(conn) })
	tick := time.NewTicker(establishedEvery)
	defer tick.Stop()
	for seq := uint64(1); ctx.Err() == nil; seq++ {
		c.mu.Lock()
		c.result.Sent++
		c.pending[seq] = time.Now()
		c.mu.Unlock()
		if _, err := conn.Write(message{c.number, seq}.bytes()); err != nil {
			c.note(0, "send: %v", err)
			if c.Kind == TCPEstablished {
				break
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	// Answers may be late, and an established TCP flow may be waiting for a retransmission.
	deadline := time.Now().Add(c.within())
	for time.Now().Before(deadline) {
		c.mu.Lock()
		left := len(c.pending)
		c.mu.Unlock()
		if left == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.result.Retransmitted = lab.Retransmits(conn)
	_ = conn.SetDeadline(time.Unix(1, 0))
	reader.Wait()
	c.lost()
}

// lost counts what was never answered.
func (c *client) lost() {
	var first time.Time
	for _, at := range c.pending {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	if len(c.pending) > 0 {
		c.result.Why = append(c.result.Why, fmt.Sprintf("%.1fs: the first of %d without an answer", first.Sub(c.began).Seconds(), len(c.pending)))
	}
	c.result.Lost += len(c.pending)
}

// answers reads until the connection is over.
func (c *client) answers(conn net.Conn) {
	buf := make([]byte, answerLn)
	for {
		var err error
		if c.Kind == TCPEstablished {
			_, err = io.ReadFull(conn, buf)
		} else {
			_, err = conn.Read(buf)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			c.note(0, "receive: %v", err)
			if c.Kind == TCPEstablished {
				return
			}
			continue
		}
		m, ok := parse(buf)
		if !ok || m.flow != c.number {
			c.note(1, "an answer that is not of this flow")
			continue
		}
		c.mu.Lock()
		now := time.Now()
		c.result.Gap = max(c.result.Gap, now.Sub(c.last))
		c.last = now
		delete(c.pending, m.seq)
		c.mu.Unlock()
	}
}

// exchange sends one message and waits for its answer.
func (c *client) exchange(conn net.Conn, seq uint64, timeout time.Duration) error {
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := conn.Write(message{c.number, seq}.bytes()); err != nil {
		return err
	}
	buf := make([]byte, answerLn)
	for {
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
		if m, ok := parse(buf); ok && m.flow == c.number && m.seq == seq {
			return nil
		}
	}
}

// fresh opens a new flow for every message, without waiting for the one before.
func (c *client) fresh(ctx context.Context, started chan<- error) {
	timeout := c.within()
	if !c.Allowed {
		timeout = deniedWithin
	}
	if err := c.once(0, timeout); (err == nil) != c.Allowed {
		if c.Allowed {
			started <- fmt.Errorf("%s: %w", c.Name, err)
		} else {
			started <- fmt.Errorf("%s: got through, although it is forbidden", c.Name)
		}
		return
	}
	started <- nil
	var under sync.WaitGroup
	defer under.Wait()
	tick := time.NewTicker(newEvery)
	defer tick.Stop()
	for seq := uint64(1); ; seq++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		c.result.Sent++
		c.mu.Unlock()
		under.Go(func() {
			err := c.once(seq, timeout)
			switch {
			case c.Allowed && err != nil:
				c.note(1, "%v", err)
			case !c.Allowed && err == nil:
				c.note(0, "got through")
				c.mu.Lock()
				c.result.Wrong++
				c.mu.Unlock()
			}
		})
	}
}

// once is one new flow with one message.
func (c *client) once(seq uint64, timeout time.Duration) error {
	conn, err := c.From.Dial(c.network(), c.To, timeout)
	if err != nil {
		return err
	}
	defer lab.Reset(conn)
	err = c.exchange(conn, seq, timeout)
	if again := lab.Retransmits(conn); again > 0 {
		c.mu.Lock()
		c.result.Retransmitted += again
		c.mu.Unlock()
	}
	return err
}
