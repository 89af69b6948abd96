package region

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// How often it is looked whether the cloud has changed, and how often the network is reconciled
// even if it has not: namespaces of nodes come and go.
const (
	look  = 50 * time.Millisecond
	mend  = 2 * time.Second
	slack = 5 * time.Second // for requests when the process ends
)

// Serve serves a region until ctx ends. ready is called when everything answers.
func Serve(ctx context.Context, s Spec, ready func() error, log *slog.Logger) error {
	c, err := s.build()
	if err != nil {
		return err
	}
	d := newDisturber(s.Provider, c)
	cert, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		return fmt.Errorf("certificate of the cloud's API: %w", err)
	}
	err = machine.WithNetlink(s.Router, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		at := s.MetadataAddr()
		// Of the host alone, so that the router sends nothing else from it.
		return h.AddrReplace(lo, &netlink.Addr{IPNet: machine.IPNet(netip.PrefixFrom(at, at.BitLen())), Scope: int(netlink.SCOPE_HOST)})
	})
	if err != nil {
		return fmt.Errorf("address of the metadata service: %w", err)
	}
	_ = os.Remove(s.Socket) // of one that was killed
	servers := []struct {
		network, address string
		handler          http.Handler
		tls              *tls.Config
	}{
		{"tcp", s.API.String(), c, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}},
		{"tcp", netip.AddrPortFrom(s.MetadataAddr(), 80).String(), s.metadata(c), nil},
		{"unix", s.Socket, d, nil},
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	for _, x := range servers {
		var l net.Listener
		err := machine.InNamespace(s.Router, func() (err error) {
			l, err = (&net.ListenConfig{}).Listen(ctx, x.network, x.address)
			return err
		})
		if err != nil {
			stop(err)
			break
		}
		if x.tls != nil {
			l = tls.NewListener(l, x.tls)
		}
		srv := &http.Server{Handler: x.handler, ReadHeaderTimeout: slack}
		running.Go(func() {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				stop(err)
			}
		})
		context.AfterFunc(ctx, func() {
			end, cancel := context.WithTimeout(context.Background(), slack)
			defer cancel()
			_ = srv.Shutdown(end) // what does not end in time ends with the process
		})
	}
	if ctx.Err() == nil {
		// The instances' own addresses are routed from the start.
		if err := s.fabric().Apply(c.View()); err != nil {
			log.Warn("not all interfaces are plugged in yet", "error", err)
		}
		if err := ready(); err != nil {
			stop(err)
		}
	}
	running.Go(func() { s.follow(ctx, c, log) })
	running.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// follow keeps the network as the cloud has it.
func (s *Spec) follow(ctx context.Context, c Cloud, log *slog.Logger) {
	f := s.fabric()
	var before cloud.View
	var fault string
	var last time.Time
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if now := c.View(); !reflect.DeepEqual(now, before) || time.Since(last) > mend {
			err := f.Apply(now)
			if text := fmt.Sprint(err); err != nil && text != fault {
				log.Warn("the network is not what the cloud has; it is tried again", "error", err)
				fault = text
			}
			if before, last = now, time.Now(); err == nil {
				fault = ""
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// metadata answers each instance with what it is: it is known by the address that it asks from, as
// that is its alone in this network.
func (s *Spec) metadata(c Cloud) http.Handler {
	of := map[netip.Addr]http.Handler{}
	for _, h := range s.Hosts {
		of[h.IPv4] = c.Metadata(InstanceID(s.Provider, h.Name))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		h := of[from.Addr().Unmap()]
		if err != nil || h == nil {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}
