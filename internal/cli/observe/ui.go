package observe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/ui"
)

// defaultPage is where the page is served.
const defaultPage = "127.0.0.1:12000"

// UICommand serves the page.
func UICommand(a *command.App) *cobra.Command {
	var server Server
	var listen, host, tokenFile string
	c := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page that shows who talks to whom",
		Long: `Serve a page for browsers: a live map of workloads and of the connections between them,
what was denied and by which policy, as a map, a matrix and a list, for the last quarter
of an hour. It cannot change anything, and loads nothing from elsewhere.

It reads flows from where hawser observe does: an agent's socket, or a server or relay that
--server names. The printed address contains a token, which the page requires.`,
		Example: `  hawser ui
  hawser ui --server 192.0.2.7:4245 --listen 127.0.0.1:8080`,
		Args: cobra.NoArgs,
	}
	server.AddFlags(c)
	c.Flags().StringVar(&listen, "listen", defaultPage, "`address` of the page, host:port, where port 0 takes a free one; or fd://N, a socket that listens")
	c.Flags().StringVar(&host, "allowed-host", "", "a `name` by which browsers ask for the page, besides localhost and addresses")
	c.Flags().StringVar(&tokenFile, "token-file", "", "a `file` with the token, which then is not printed; without it, each start has a token of its own")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if !ui.Built() {
			return errors.New("this program was built without the page: run `make web`, then `make build`")
		}
		conn, err := server.Dial(a)
		if err != nil {
			return err
		}
		defer conn.Close()
		l, err := listenPage(listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		follower := &ui.Follower{Client: observer.NewObserverClient(conn), Nodes: health.NewNodeHealthClient(conn), Policy: policy.NewPolicyClient(conn), Graph: ui.NewGraph(ui.DefaultLimits())}
		page := ui.NewServer(follower, host)
		if tokenFile == "" {
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n", page.URL(l.Addr()))
		} else {
			token, err := os.ReadFile(tokenFile)
			if err == nil {
				err = page.SetToken(strings.TrimSpace(string(token)))
			}
			if err != nil {
				return fmt.Errorf("--token-file: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "http://%s/#token= and what %s has\n", l.Addr(), tokenFile)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "flows come from %s; interrupt to end\n", server.place(a))
		return serveUntil(cmd.Context(), l, page, follower.Run)
	}
	return c
}

// listenPage listens at an address, or takes a descriptor that does.
func listenPage(address string) (net.Listener, error) {
	number, ok := strings.CutPrefix(address, "fd://")
	if !ok {
		return net.Listen("tcp", address)
	}
	fd, err := strconv.Atoi(number)
	if err != nil || fd < 3 {
		return nil, exitcode.Usagef("%q is no descriptor from 3 on", number)
	}
	f := os.NewFile(uintptr(fd), address)
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("%s is no socket that listens: %w", address, err)
	}
	return l, nil
}

// serveUntil answers requests, and runs background work, until ctx ends. A client that only opens
// connections takes no memory without end, and keeps no client at another address out.
func serveUntil(ctx context.Context, l net.Listener, h http.Handler, background func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { background(ctx) })
	return daemon.ServeWith(ctx, flowserver.BoundConnections(l), srv)
}
