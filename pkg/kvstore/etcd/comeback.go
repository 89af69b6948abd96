package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/backoff"

	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// spreadPerClient and the two bounds determine the time over which the clients of a cluster
	// reconnect after they lost a server together: every client waits for a random part of it.
	// 2,000 clients come back in 20 s, 100 a second, each with its watches, leases and what has
	// queued up.
	spreadPerClient = 10 * time.Millisecond
	minSpread       = 500 * time.Millisecond
	maxSpread       = 30 * time.Second
	// connectTimeout bounds one attempt to connect, besides the wait.
	connectTimeout = 10 * time.Second
	// catchUp is by how much a client that is back may exceed its own request rate of before, until
	// it has caught up with what waited meanwhile.
	catchUp = 1.4
	// minCatchUp is the rate, requests a second, that all clients together may have whatever they
	// did before: a client of a small cluster is not slowed.
	minCatchUp = 2000.0
	// minSlow and maxSlow bound how long it does so; between them it is three times as long as the
	// store was away.
	minSlow = 5 * time.Second
	maxSlow = 2 * time.Minute
	// meterSlot and meterSlots are how the request rate of before is measured.
	meterSlot  = 10 * time.Second
	meterSlots = 6
)

// reconnect is the pause between attempts that failed. Jitter and a long last pause keep clients
// from trying in step.
var reconnect = backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.5, MaxDelay: 30 * time.Second}

// comeback is what keeps thousands of clients from overrunning a server that was away. It limits
// the rate of requests at all times; it holds requests back while there is no connection; it
// spreads the connections of all clients over some seconds; and it lets a client that is back catch
// up slowly.
type comeback struct {
	mu      sync.Mutex
	clients int // in the cluster; 0 is not known
	dialled bool
	live    int           // connections that stand
	gate    chan struct{} // while none stands that stood: closed when one does again
	lost    time.Time     // when the last one was lost

	limiter   *rate.Limiter
	qps       int // in normal times; 0 is no limit
	slowUntil time.Time

	// connected, if not nil, is called after each connection that was made.
	connected func()

	began    time.Time
	admitted [meterSlots]int // requests by slots of time
	slot     int64           // the newest slot
}

func newComeback(qps int) *comeback {
	c := &comeback{limiter: rate.NewLimiter(rate.Inf, 0), began: time.Now()}
	c.setRate(qps)
	return c
}

// setRate sets the rate of normal times, with bursts of as many; 0 is no limit.
func (c *comeback) setRate(qps int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qps = qps
	c.normal()
}

// normal must be called with mu held.
func (c *comeback) normal() {
	c.slowUntil = time.Time{}
	if c.qps == 0 {
		c.limiter.SetLimit(rate.Inf)
		return
	}
	c.limiter.SetLimit(rate.Limit(c.qps))
	c.limiter.SetBurst(c.qps)
}

// admit waits until a request may be sent.
func (c *comeback) admit(ctx context.Context) error {
	for {
		c.mu.Lock()
		gate := c.gate
		if gate == nil && !c.slowUntil.IsZero() && time.Now().After(c.slowUntil) {
			c.normal()
		}
		c.mu.Unlock()
		if gate == nil {
			break
		}
		select {
		case <-gate:
		case <-ctx.Done():
			return fmt.Errorf("the connection to etcd is lost: %w", ctx.Err())
		}
	}
	if err := c.limiter.Wait(ctx); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for the request rate limit: %w", ctx.Err())
		}
		// The limiter foresees that the deadline would pass.
		return fmt.Errorf("waiting for the request rate limit: %w", context.DeadlineExceeded)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(time.Now())
	c.admitted[c.slot%meterSlots]++
	return nil
}

// advance empties the slots that time has left behind. It must be called with mu held.
func (c *comeback) advance(now time.Time) {
	slot := int64(now.Sub(c.began) / meterSlot)
	for n := 0; c.slot < slot && n < meterSlots; n++ {
		c.slot++
		c.admitted[c.slot%meterSlots] = 0
	}
	c.slot = slot
}

// before returns the requests a second of the last minute. It must be called with mu held.
func (c *comeback) before(now time.Time) float64 {
	c.advance(now)
	sum := 0
	for _, n := range c.admitted {
		sum += n
	}
	over := min(now.Sub(c.began), (meterSlots-1)*meterSlot+now.Sub(c.began)%meterSlot)
	return float64(sum) / max(over.Seconds(), 1)
}

// opened and closed count connections that stand.
func (c *comeback) opened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live++
	if c.gate == nil {
		return
	}
	close(c.gate)
	c.gate = nil
	if c.qps == 0 {
		return
	}
	now := time.Now()
	away := now.Sub(c.lost)
	// What was admitted while the store was away was not served, so the rate is that of before.
	limit := min(max(catchUp*c.before(c.lost), minCatchUp/float64(max(c.clients, 1))), float64(c.qps))
	c.limiter.SetLimit(rate.Limit(limit))
	c.limiter.SetBurst(max(1, int(limit)))
	c.slowUntil = now.Add(min(max(3*away, minSlow), maxSlow))
	c.admitted, c.slot = [meterSlots]int{}, 0
	c.began = now
}

func (c *comeback) closed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live--; c.live == 0 && c.gate == nil {
		c.gate, c.lost = make(chan struct{}), time.Now()
	}
}

// wait holds up every attempt to connect but the first: a client that starts is waited for.
func (c *comeback) wait(ctx context.Context) error {
	c.mu.Lock()
	first := !c.dialled
	c.dialled = true
	spread := min(max(time.Duration(c.clients)*spreadPerClient, minSpread), maxSpread)
	c.mu.Unlock()
	if !first && !retry.Sleep(ctx, rand.N(spread)) {
		return ctx.Err()
	}
	return nil
}

// dial connects to an address in the form that the etcd client gives, after the wait.
func (c *comeback) dial(ctx context.Context, address string) (net.Conn, error) {
	if err := c.wait(ctx); err != nil {
		return nil, fmt.Errorf("waiting to connect again: %w", err)
	}
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
		if rest, ok := strings.CutPrefix(path, "//"); ok {
			address = rest
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.opened()
	if c.connected != nil {
		c.connected()
	}
	return &countedConn{Conn: conn, closed: sync.OnceFunc(c.closed)}, nil
}

// countedConn reports when it is closed.
type countedConn struct {
	net.Conn
	closed func()
}

// Close closes the connection.
func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// SetClusterSize sets how many clients the store has, about. After a restart of a server they come
// back one after the other, 100 a second; a client that does not know waits for up to half a
// second.
func (c *Client) SetClusterSize(clients int) {
	c.comeback.mu.Lock()
	defer c.comeback.mu.Unlock()
	c.comeback.clients = clients
}
