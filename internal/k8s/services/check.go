package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/pkg/retry"
)

// checkRetry is the pause before ports in use by another process are tried again.
const checkRetry = 10 * time.Second

// checks answers balancers outside that ask, at a service's health check port, whether this node
// has endpoints of it: for a service whose traffic from outside goes to the endpoints of the node
// that it came to (spec.healthCheckNodePort). The form is that of kube-proxy.
type checks struct {
	log   *slog.Logger
	ready func(service.Name) int
	at    func(port uint16) (net.Listener, error)

	mu     sync.Mutex
	ended  bool
	ports  map[service.Name]uint16
	open   map[service.Name]*http.Server
	serves sync.WaitGroup
}

func newChecks(log *slog.Logger, ready func(service.Name) int, at func(port uint16) (net.Listener, error)) *checks {
	return &checks{log: log, ready: ready, at: at, ports: map[service.Name]uint16{}, open: map[service.Name]*http.Server{}}
}

// set sets the health check port of a service; 0 for none.
func (c *checks) set(n service.Name, port uint16) {
	if c.at == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ports[n] == port {
		return
	}
	if srv := c.open[n]; srv != nil {
		srv.Close()
		delete(c.open, n)
	}
	delete(c.ports, n)
	if port == 0 {
		return
	}
	c.ports[n] = port
	if err := c.listen(n); err != nil {
		c.log.Warn("balancers that ask for a service's endpoints on this node are not answered yet", "service", n, "port", port, "error", err)
	}
}

// listen is called with mu held.
func (c *checks) listen(n service.Name) error {
	if c.ended || c.open[n] != nil {
		return nil
	}
	l, err := c.at(c.ports[n])
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.answer(w, n) }), MaxHeaderBytes: 8 << 10,
		ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
	}
	srv.SetKeepAlivesEnabled(false) // a client that asks repeatedly would keep a connection
	c.open[n] = srv
	c.serves.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			c.log.Warn("a health check port is no longer served", "service", n, "error", err)
		}
	})
	return nil
}

func (c *checks) answer(w http.ResponseWriter, n service.Name) {
	ready := c.ready(n)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(ready))
	if ready == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{ // it fails if the client has gone
		"service": map[string]string{"namespace": n.Namespace, "name": n.Name}, "localEndpoints": ready, "serviceProxyHealthy": true,
	})
}

// run tries ports again that were taken, until ctx ends; then it ends all servers.
func (c *checks) run(ctx context.Context) error {
	for retry.Sleep(ctx, checkRetry) {
		c.mu.Lock()
		for n, port := range c.ports {
			if err := c.listen(n); err != nil {
				c.log.Debug("a health check port is taken", "service", n, "port", port, "error", fmt.Sprint(err))
			}
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.ended = true
	for _, srv := range c.open {
		srv.Close()
	}
	c.mu.Unlock()
	c.serves.Wait()
	return nil
}
