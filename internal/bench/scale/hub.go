package scale

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
)

// hub is one watch of all CiliumEndpoints that many stub agents share, each of which hears its own
// node's only. Without it, every change of every pod would be sent to every agent and read there,
// thousands times thousands: more than one machine can do. The agents do not know: the hub answers
// their requests in the place of the server, in the server's words.
type hub struct {
	client *k8s.Client
	log    *slog.Logger

	mu       sync.Mutex
	synced   chan struct{}        // closed when all objects are known
	objects  map[string]hubObject // by UID
	revision string
	subs     map[*subscription]bool
}

type hubObject struct {
	node string
	raw  json.RawMessage
}

func newHub(client *k8s.Client, log *slog.Logger) *hub {
	return &hub{client: client, log: log, synced: make(chan struct{}), objects: map[string]hubObject{}, subs: map[*subscription]bool{}}
}

// hubEvent is what the hub reads of an event.
type hubEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// hubMeta is what the hub reads of an object.
type hubMeta struct {
	Metadata struct {
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Status struct {
		Networking struct {
			Node string `json:"node"`
		} `json:"networking"`
	} `json:"status"`
}

// initialEventsEnd marks the bookmark after the objects that were there at the start (see the API's
// documentation of sendInitialEvents).
const initialEventsEnd = "k8s.io/initial-events-end"

// hubPause is the pause before the hub watches again: a server that is too busy ends watches.
const hubPause = 200 * time.Millisecond

// run watches until ctx ends, and returns nil then. When the watch ends, so do those of the agents,
// who begin anew as they would with the server.
func (h *hub) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := h.watch(ctx)
		if ctx.Err() == nil {
			h.log.Warn("the watch of endpoints that agents share has ended and begins anew", "error", err)
		}
		h.restart()
		select {
		case <-ctx.Done():
		case <-time.After(hubPause):
		}
	}
	return nil
}

// watch hears events until that fails.
func (h *hub) watch(ctx context.Context) error {
	body, err := h.client.UrgentV2.Get().Resource(v2.ResourceEndpoints).Param("watch", "true").Param("allowWatchBookmarks", "true").
		Param("sendInitialEvents", "true").Param("resourceVersionMatch", "NotOlderThan").Param("timeoutSeconds", "86400").Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	read := bufio.NewReaderSize(body, 1<<20)
	for {
		line, err := read.ReadBytes('\n')
		if err != nil {
			return err
		}
		if err := h.hear(line); err != nil {
			return err
		}
	}
}

// ready waits until all objects are known.
func (h *hub) ready(ctx context.Context) error {
	h.mu.Lock()
	synced := h.synced
	h.mu.Unlock()
	select {
	case <-synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the watch of endpoints that agents share: %w", ctx.Err())
	}
}

// hear takes one event in.
func (h *hub) hear(line []byte) error {
	var ev hubEvent
	var meta hubMeta
	if err := json.Unmarshal(line, &ev); err != nil {
		return err
	}
	if ev.Type == "ERROR" {
		return fmt.Errorf("the server says %s", ev.Object)
	}
	if err := json.Unmarshal(ev.Object, &meta); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revision = meta.Metadata.ResourceVersion
	switch ev.Type {
	case "BOOKMARK":
		if meta.Metadata.Annotations[initialEventsEnd] == "true" {
			close(h.synced)
		}
		return nil
	case "ADDED", "MODIFIED":
		h.objects[meta.Metadata.UID] = hubObject{meta.Status.Networking.Node, ev.Object}
	case "DELETED":
		delete(h.objects, meta.Metadata.UID)
	default:
		return fmt.Errorf("the server says %s: %s", ev.Type, ev.Object)
	}
	for s := range h.subs {
		if s.node == meta.Status.Networking.Node {
			s.push(line)
		}
	}
	return nil
}

// restart forgets everything.
func (h *hub) restart() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.synced:
		h.synced = make(chan struct{})
	default: // whoever waits goes on to
	}
	clear(h.objects)
	for s := range h.subs {
		s.end(io.EOF)
	}
	clear(h.subs)
}

// filter returns a transport that answers watches of endpoints from the hub, with those of one
// node, and passes everything else on.
func (h *hub) filter(node string, next http.RoundTripper) http.RoundTripper {
	return hubTransport{h, node, next}
}

type hubTransport struct {
	hub  *hub
	node string
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t hubTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	q := req.URL.Query()
	if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, "/"+v2.ResourceEndpoints) || q.Get("watch") != "true" {
		return t.next.RoundTrip(req)
	}
	resp := &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}},
	}
	if q.Get("sendInitialEvents") != "true" {
		const gone = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"begin anew","reason":"Expired","code":410}}` + "\n"
		resp.Body = io.NopCloser(strings.NewReader(gone))
		return resp, nil
	}
	if err := t.hub.ready(req.Context()); err != nil {
		return nil, err
	}
	s := t.hub.subscribe(t.node)
	stop := context.AfterFunc(req.Context(), func() { s.end(req.Context().Err()) })
	s.closed = func() {
		stop()
		t.hub.mu.Lock()
		defer t.hub.mu.Unlock()
		delete(t.hub.subs, s)
	}
	resp.Body = s
	return resp, nil
}

// subscription is the body of one agent's watch.
type subscription struct {
	node   string
	closed func()

	mu   sync.Mutex
	more sync.Cond
	buf  bytes.Buffer
	err  error
}

func (h *hub) subscribe(node string) *subscription {
	s := &subscription{node: node}
	s.more.L = &s.mu
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.objects {
		if o.node == node {
			s.push(fmt.Appendf(nil, `{"type":"ADDED","object":%s}`+"\n", o.raw))
		}
	}
	const bookmark = `{"type":"BOOKMARK","object":{"kind":"CiliumEndpoint","apiVersion":"cilium.io/v2","metadata":{"resourceVersion":%q,` +
		`"creationTimestamp":null,"annotations":{"` + initialEventsEnd + `":"true"}}}}` + "\n"
	s.push(fmt.Appendf(nil, bookmark, h.revision))
	h.subs[s] = true
	return s
}

func (s *subscription) push(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Write(line)
	s.more.Signal()
}

// end has the reader get what is left, and then an error.
func (s *subscription) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.more.Broadcast()
}

// Read implements io.Reader.
func (s *subscription) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.buf.Len() == 0 && s.err == nil {
		s.more.Wait()
	}
	if s.buf.Len() == 0 {
		return 0, s.err
	}
	return s.buf.Read(p)
}

// Close implements io.Closer.
func (s *subscription) Close() error {
	s.end(http.ErrBodyReadAfterClose)
	s.closed()
	return nil
}
