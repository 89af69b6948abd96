// Package cloud is what the clouds of a machine have in common, each a package below it: how they
// answer requests, and how they are disturbed. They throttle, are slow, refuse, answer from the
// past and lose answers as the real ones do to their users. A cloud's own is its [Protocol].
package cloud

import (
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/hawser-net/hawser/pkg/retry"
)

// Fault is what becomes of a request, but its effect.
type Fault struct {
	// Code and Message are those of the error; Status is the one of HTTP, the cloud's own for
	// errors if it is 0.
	Code, Message string
	Status        int
	// RetryAfter is in how many seconds to come back, sent if it is above 0.
	RetryAfter int
	// Drop closes the connection without an answer.
	Drop bool
	// After has the request take effect first.
	After bool
}

// Disturbances are what a cloud does to its users. The zero value does nothing; its methods may be
// called at any time from anywhere.
type Disturbances struct {
	mu      sync.Mutex
	calls   map[string]int
	script  func(action string) *Fault
	latency time.Duration
	tokens  float64
	rate    float64
	filled  time.Time
}

// Calls returns how often each action was asked for.
func (d *Disturbances) Calls() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.calls)
}

// Script has f decide what becomes of each request; nil or a nil answer has it take effect.
func (d *Disturbances) Script(f func(action string) *Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.script = f
}

// Latency has each answer take that long.
func (d *Disturbances) Latency(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.latency = t
}

// Throttle allows perSecond requests after a burst; 0 is no bound.
func (d *Disturbances) Throttle(perSecond, burst float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rate, d.tokens, d.filled = perSecond, burst, time.Now()
}

// Arrive counts a request and delays it. It returns what the script says of it, and whether
// the throttle admits it: the script is not asked about what it does not.
func (d *Disturbances) Arrive(r *http.Request, action string) (f *Fault, admitted bool) {
	d.mu.Lock()
	if d.calls == nil {
		d.calls = map[string]int{}
	}
	d.calls[action]++
	admitted = d.admit()
	latency, script := d.latency, d.script
	d.mu.Unlock()
	if latency > 0 {
		retry.Sleep(r.Context(), latency)
	}
	if script != nil && admitted {
		f = script(action) // without a lock: it may look at the cloud
	}
	return f, admitted
}

// admit takes a token of the throttle. It must be called with mu held.
func (d *Disturbances) admit() bool {
	if d.rate == 0 {
		return true
	}
	now := time.Now()
	d.tokens = min(d.tokens+d.rate*now.Sub(d.filled).Seconds(), max(d.rate, 1))
	d.filled = now
	if d.tokens < 1 {
		return false
	}
	d.tokens--
	return true
}

// Drop closes the connection of a request without an answer.
func Drop(w http.ResponseWriter) {
	if h, ok := w.(http.Hijacker); ok {
		if conn, _, err := h.Hijack(); err == nil {
			conn.Close()
			return
		}
	}
	panic(http.ErrAbortHandler)
}
