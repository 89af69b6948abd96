package daemon

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// stopGrace is how long requests under way may take when a server stops.
const stopGrace = 2 * time.Second

// Serve answers requests on l until ctx ends, then gives those under way a moment to finish. It
// closes l.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return ServeWith(ctx, l, &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute})
}

// ServeWith is [Serve] by a server with bounds of its own.
func ServeWith(ctx context.Context, l net.Listener, srv *http.Server) error {
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	err := srv.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	<-done
	return err
}
