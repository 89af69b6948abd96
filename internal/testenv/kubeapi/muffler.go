package kubeapi

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Muffler is a connection whose watches of some kinds deliver nothing while it is on. Requests are
// answered. Its methods may be called from any goroutine.
type Muffler struct {
	// Kinds are the last part of the paths, such as "pods". They must not change.
	Kinds []string

	mu   sync.Mutex
	gate chan struct{} // closed by Off; nil while it is off
}

// On holds back what watches deliver from now on.
func (m *Muffler) On() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gate == nil {
		m.gate = make(chan struct{})
	}
}

// Off has them deliver what was held back, and everything after it.
func (m *Muffler) Off() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gate != nil {
		close(m.gate)
		m.gate = nil
	}
}

// Wrap has a client be muffled.
func (m *Muffler) Wrap(cfg *rest.Config) { cfg.Wrap(m.Transport) }

// Transport returns a muffled connection.
func (m *Muffler) Transport(next http.RoundTripper) http.RoundTripper { return &muffled{next, m} }

type muffled struct {
	next http.RoundTripper
	m    *Muffler
}

// RoundTrip implements [http.RoundTripper].
func (t *muffled) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	is := slices.ContainsFunc(t.m.Kinds, func(kind string) bool { return strings.HasSuffix(r.URL.Path, "/"+kind) })
	if err == nil && is && r.URL.Query().Get("watch") != "" {
		resp.Body = &muffledBody{resp.Body, t.m, r.Context().Done()}
	}
	return resp, err
}

type muffledBody struct {
	io.ReadCloser
	m    *Muffler
	done <-chan struct{}
}

// Read holds back what it has read while the muffler is on.
func (b *muffledBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.m.mu.Lock()
	gate := b.m.gate
	b.m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-b.done:
		}
	}
	return n, err
}
