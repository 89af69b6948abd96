package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// maxLine bounds what a pod's server reads from a client.
const maxLine = 2048

// serve answers on each port, TCP and UDP, IPv4 and IPv6, until ctx ends: with its name to any line
// or datagram, and with a small page to an HTTP request. It notifies readyFD when it listens.
func serve(ctx context.Context, name string, ports []uint16, readyFD int) error {
	var tcp []net.Listener
	var udp []net.PacketConn
	closeAll := func() {
		for _, l := range tcp {
			_ = l.Close()
		}
		for _, c := range udp {
			_ = c.Close()
		}
	}
	defer closeAll()
	for _, port := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		tcp = append(tcp, l)
		c, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		udp = append(udp, c)
	}
	if err := machine.SignalReady(readyFD); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, l := range tcp {
		wg.Go(func() { serveTCP(name, l) })
	}
	for _, c := range udp {
		wg.Go(func() { serveUDP(name, c) })
	}
	<-ctx.Done()
	closeAll()
	wg.Wait()
	return nil
}

// serveTCP handles connections until the listener closes, at most a few hundred at a time.
func serveTCP(name string, l net.Listener) {
	var conns errgroup.Group
	conns.SetLimit(256)
	defer func() { _ = conns.Wait() }()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		conns.Go(func() error {
			answer(name, c)
			return nil
		})
	}
}

// answer reads lines until the client closes and replies to each.
func answer(name string, c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(io.LimitReader(c, 1<<20), maxLine)
	for {
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return
		}
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		text := strings.TrimSpace(string(line))
		if strings.HasSuffix(text, " HTTP/1.1") || strings.HasSuffix(text, " HTTP/1.0") {
			// The header must be read, or the close would reset the connection under the reply.
			for {
				line, err := r.ReadSlice('\n')
				if err != nil {
					return
				}
				if strings.TrimSpace(string(line)) == "" {
					break
				}
			}
			body := name + " says hello to " + c.RemoteAddr().String() + "\n"
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
			return
		}
		if _, err := fmt.Fprintf(c, "%s %s\n", name, text); err != nil {
			return
		}
	}
}

func serveUDP(name string, c net.PacketConn) {
	buf := make([]byte, maxLine)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = c.WriteTo([]byte(name+" "+strings.TrimSpace(string(buf[:n]))+"\n"), from)
		}
	}
}

func serveCommand() *cobra.Command {
	var name string
	var ports []uint
	var readyFD int
	var hosts string
	var to []string
	cmd := &cobra.Command{
		Use: "serve", Hidden: true, Args: cobra.NoArgs,
		Short: "answer on ports with a name (run in every pod)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var ps []uint16
			for _, p := range ports {
				if p < 1 || p > 65535 {
					return fmt.Errorf("port %d: want 1 to 65535", p)
				}
				ps = append(ps, uint16(p))
			}
			peers, err := parsePeers(to)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			var talking sync.WaitGroup
			talking.Go(func() { talk(ctx, hosts, peers) })
			err = serve(ctx, name, ps, readyFD)
			cancel()
			talking.Wait()
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "what to answer")
	cmd.Flags().UintSliceVar(&ports, "port", nil, "port to listen on (repeatable)")
	cmd.Flags().StringSliceVar(&to, "talk-to", nil, "whom to talk to, such as tcp:api-1:8080 (repeatable)")
	cmd.Flags().StringVar(&hosts, "hosts", "", "file with the addresses of these")
	cmd.Flags().IntVar(&readyFD, "ready-fd", 0, "descriptor to notify when ready")
	return cmd
}
