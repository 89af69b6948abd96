// Package fanout shares one watch of CiliumEndpoints among thousands of agents in one process: each
// gets only those of its own node, as from the server (see the Kubernetes API's documentation of
// watches and of sendInitialEvents). Everything in it may be used by several goroutines.
package fanout

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
	"github.com/hawser-net/hawser/pkg/retry"
)

// Watch is one watch of all CiliumEndpoints that many agents share. Without it, every change of
// every pod would be sent to every agent and read there, thousands times thousands: more than one
// machine can do. The agents do not know: it answers their requests in the place of the server, in
// the server's words.
type Watch struct {
	client *k8s.Client
	log    *slog.Logger

	mu       sync.Mutex
	synced   chan struct{}     // closed when all objects are known
	objects  map[string]object // by UID
	revision string
	subs     map[*subscription]bool
}

type object struct {
	node string
	raw  json.RawMessage
}

// New returns a watch that begins with [Watch.Run]. It logs when it has to restart.
func New(client *k8s.Client, log *slog.Logger) *Watch {
	return &Watch{client: client, log: log, synced: make(chan struct{}), objects: map[string]object{}, subs: map[*subscription]bool{}}
}

// event is what the watch reads of an event.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// meta is what the watch reads of an object.
type meta struct {
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

// pause is the pause before it watches again: a server that is too busy ends watches.
const pause = 200 * time.Millisecond

// Run watches until ctx ends, and returns nil then. When the watch ends, so do those of the agents,
// which relist as they would with the server.
func (w *Watch) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := w.follow(ctx)
		if ctx.Err() == nil {
			w.log.Warn("the watch of endpoints that agents share has ended and restarts", "error", err)
		}
		w.restart()
		retry.Sleep(ctx, pause)
	}
	return nil
}

// follow takes in events until that fails.
func (w *Watch) follow(ctx context.Context) error {
	body, err := w.client.UrgentV2.Get().Resource(v2.ResourceEndpoints).Param("watch", "true").Param("allowWatchBookmarks", "true").
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
		if err := w.handle(line); err != nil {
			return err
		}
	}
}

// ready waits until all objects are known.
func (w *Watch) ready(ctx context.Context) error {
	w.mu.Lock()
	synced := w.synced
	w.mu.Unlock()
	select {
	case <-synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the watch of endpoints that agents share: %w", ctx.Err())
	}
}

// handle takes one event in.
func (w *Watch) handle(line []byte) error {
	var ev event
	var of meta
	if err := json.Unmarshal(line, &ev); err != nil {
		return err
	}
	if ev.Type == "ERROR" {
		return fmt.Errorf("the server returned %s", ev.Object)
	}
	if err := json.Unmarshal(ev.Object, &of); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision = of.Metadata.ResourceVersion
	switch ev.Type {
	case "BOOKMARK":
		if of.Metadata.Annotations[initialEventsEnd] == "true" {
			close(w.synced)
		}
		return nil
	case "ADDED", "MODIFIED":
		w.objects[of.Metadata.UID] = object{of.Status.Networking.Node, ev.Object}
	case "DELETED":
		delete(w.objects, of.Metadata.UID)
	default:
		return fmt.Errorf("the server returned %s: %s", ev.Type, ev.Object)
	}
	for s := range w.subs {
		if s.node == of.Status.Networking.Node {
			s.push(line)
		}
	}
	return nil
}

// restart forgets everything.
func (w *Watch) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.synced:
		w.synced = make(chan struct{})
	default: // a waiter goes on to
	}
	clear(w.objects)
	for s := range w.subs {
		s.end(io.EOF)
	}
	clear(w.subs)
}

// Filter returns a transport that answers watches of endpoints from the shared watch, with those of
// one node, and passes everything else on.
func (w *Watch) Filter(node string, next http.RoundTripper) http.RoundTripper {
	return transport{w, node, next}
}

type transport struct {
	watch *Watch
	node  string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	q := req.URL.Query()
	if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, "/"+v2.ResourceEndpoints) || q.Get("watch") != "true" {
		return t.next.RoundTrip(req)
	}
	resp := &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}},
	}
	if q.Get("sendInitialEvents") != "true" {
		const gone = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"list again","reason":"Expired","code":410}}` + "\n"
		resp.Body = io.NopCloser(strings.NewReader(gone))
		return resp, nil
	}
	if err := t.watch.ready(req.Context()); err != nil {
		return nil, err
	}
	s := t.watch.subscribe(t.node)
	stop := context.AfterFunc(req.Context(), func() { s.end(req.Context().Err()) })
	s.closed = func() {
		stop()
		t.watch.mu.Lock()
		defer t.watch.mu.Unlock()
		delete(t.watch.subs, s)
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

func (w *Watch) subscribe(node string) *subscription {
	s := &subscription{node: node}
	s.more.L = &s.mu
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.objects {
		if o.node == node {
			s.push(fmt.Appendf(nil, `{"type":"ADDED","object":%s}`+"\n", o.raw))
		}
	}
	const bookmark = `{"type":"BOOKMARK","object":{"kind":"CiliumEndpoint","apiVersion":"cilium.io/v2","metadata":{"resourceVersion":%q,` +
		`"creationTimestamp":null,"annotations":{"` + initialEventsEnd + `":"true"}}}}` + "\n"
	s.push(fmt.Appendf(nil, bookmark, w.revision))
	w.subs[s] = true
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
