package scale

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/pkg/retry"
)

// listener counts what one agent receives over its watch of identities, and records the delivery of
// identities that are waited for.
type listener struct {
	delivery *delivery

	mu            sync.Mutex
	events, bytes int64
	// watches and lists are how often the agent began a watch, and how often it read everything.
	watches, lists int
	part           []byte // of an event
	last           []byte // the event before
}

// watchLoad is what listeners have received, all together or on average.
type watchLoad struct {
	events, bytes  int64
	watches, lists int
}

func (h watchLoad) since(before watchLoad) watchLoad {
	return watchLoad{h.events - before.events, h.bytes - before.bytes, h.watches - before.watches, h.lists - before.lists}
}

// sum adds up what listeners have received.
func sum(listeners []*listener) (all watchLoad) {
	for _, e := range listeners {
		e.mu.Lock()
		all.events += e.events
		all.bytes += e.bytes
		all.watches += e.watches
		all.lists += e.lists
		e.mu.Unlock()
	}
	return all
}

// wrap returns a transport by which the listener receives identities.
func (e *listener) wrap(next http.RoundTripper) http.RoundTripper { return listenerTransport{e, next} }

type listenerTransport struct {
	*listener
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t listenerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err != nil || req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, "/"+v2.ResourceIdentities) {
		return resp, err
	}
	q := req.URL.Query()
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.Get("watch") != "true" || q.Get("sendInitialEvents") == "true" {
		t.lists++
	}
	if q.Get("watch") == "true" {
		t.watches++
		t.part = t.part[:0]
		resp.Body = listenerBody{resp.Body, t.listener}
	}
	return resp, err
}

type listenerBody struct {
	io.ReadCloser
	listener *listener
}

// Read implements io.Reader.
func (b listenerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.listener.receive(p[:n])
	return n, err
}

// receive takes in what was read. In JSON, events are lines.
func (e *listener) receive(p []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bytes += int64(len(p))
	for {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			e.part = append(e.part, p...)
			return
		}
		e.last = append(append(e.last[:0], e.part...), p[:end]...)
		e.part, p = e.part[:0], p[end+1:]
		e.events++
		if n, ok := deliveryIn(e.last); ok {
			e.delivery.observed(n, e)
		}
	}
}

// version returns the resource version of the event that was received last, and whether that was an
// error instead.
func (e *listener) version() (version string, failed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return between(e.last, `"resourceVersion":"`, '"'), bytes.HasPrefix(e.last, []byte(`{"type":"ERROR"`))
}

// between returns what stands behind the first mark, up to end.
func between(text []byte, mark string, end byte) string {
	_, rest, ok := bytes.Cut(text, []byte(mark))
	if i := bytes.IndexByte(rest, end); ok && i >= 0 {
		return string(rest[:i])
	}
	return ""
}

// reconnectPause is the pause before a listener reconnects whose watch has ended.
const reconnectPause = 200 * time.Millisecond

// listen follows the identities from a version on, over a connection of its own, as an agent that
// has listed before does, until ctx ends. It reads what it is sent and does not process it.
// ready is called when the server has accepted the watch for the first time.
func (e *listener) listen(ctx context.Context, c *cluster, version string, ready func()) error {
	transport := c.transport()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: e.wrap(transport)}
	buf := make([]byte, 8<<10)
	for ctx.Err() == nil {
		err := e.watch(ctx, client, c, version, ready, buf)
		if ctx.Err() != nil {
			return nil
		}
		next, failed := e.version()
		if failed || err != nil { // what it has missed the server does not remember: a real agent reads everything
			if next, err = c.version(ctx); err != nil {
				c.r.log.Warn("an agent cannot listen", "error", err)
				next = version
			}
			e.mu.Lock()
			e.lists++
			e.mu.Unlock()
			e.delivery.readBy(e)
		}
		if next != "" {
			version = next
		}
		retry.Sleep(ctx, reconnectPause)
	}
	return nil
}

// watch receives events until the watch ends. An error is that there was none.
func (e *listener) watch(ctx context.Context, client *http.Client, c *cluster, version string, ready func(), buf []byte) error {
	url := c.rest.Host + "/apis/" + v2.SchemeGroupVersion().String() + "/" + v2.ResourceIdentities +
		"?watch=true&allowWatchBookmarks=true&timeoutSeconds=86400&resourceVersion=" + version
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.rest.BearerToken)
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("a watch of identities: %s", resp.Status)
	}
	ready()
	for {
		if _, err := resp.Body.Read(buf); err != nil {
			return nil
		}
	}
}

// version asks the server for the version that its identities are at.
func (c *cluster) version(ctx context.Context) (string, error) {
	var list v2.CiliumIdentityList
	err := c.client.UrgentV2.Get().Resource(v2.ResourceIdentities).Param("limit", "1").Do(ctx).Into(&list)
	return list.ResourceVersion, err
}

// deliveryLabel is the label of identities whose way to all agents is timed; its value is a number.
const deliveryLabel = "k8s:delivered-to-all"

// deliveryIn returns the number of the identity in an event, if it is one of those.
func deliveryIn(event []byte) (int, bool) {
	text := between(event, `"`+deliveryLabel+`":"`, '"')
	n, err := strconv.Atoi(text)
	return n, err == nil
}

// delivery records when each listener observed an identity.
type delivery struct {
	mu        sync.Mutex
	n         int // the identity that is waited for
	at        map[*listener]time.Time
	listeners int
	known     chan struct{} // closed when all have observed it
}

// expect begins to wait for an identity. One is waited for at a time.
func (w *delivery) expect(n, listeners int) (known <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n, w.at, w.listeners, w.known = n, map[*listener]time.Time{}, listeners, make(chan struct{})
	return w.known
}

// observed records that a listener has observed an identity.
func (w *delivery) observed(n int, e *listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n != w.n || len(w.at) == w.listeners || !w.at[e].IsZero() {
		return
	}
	w.at[e] = time.Now()
	if len(w.at) == w.listeners {
		close(w.known)
	}
}

// readBy records that a listener has read everything.
func (w *delivery) readBy(e *listener) {
	w.mu.Lock()
	n := w.n
	w.mu.Unlock()
	w.observed(n, e)
}

// times returns how long after a moment each listener observed it, in milliseconds.
func (w *delivery) times(since time.Time) []float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []float64
	for _, at := range w.at {
		out = append(out, max(0, at.Sub(since).Seconds()*1000))
	}
	return out
}
