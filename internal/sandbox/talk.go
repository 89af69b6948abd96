package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-net/hawser/pkg/retry"
)

// The demo's pods talk so often, and wait so long for an answer. That is some ten packets a second
// in all: enough to see, and not enough to feel.
const (
	talkEvery   = 2 * time.Second
	talkTimeout = time.Second
)

// A peer is whom a pod of the demo talks to: a name of the sandbox's hosts file.
type peer struct {
	name  string
	port  uint16
	proto Protocol // TCP or UDP
}

func (p peer) String() string { return fmt.Sprintf("%s:%s:%d", p.proto, p.name, p.port) }

// parsePeer reads what String writes.
func parsePeer(text string) (peer, error) {
	proto, rest, _ := strings.Cut(text, ":")
	name, portText, _ := strings.Cut(rest, ":")
	port, err := strconv.ParseUint(portText, 10, 16)
	p := peer{name, uint16(port), Protocol(proto)}
	if err != nil || port == 0 || name == "" || p.proto != TCP && p.proto != UDP {
		return peer{}, fmt.Errorf("peer %q: want tcp:NAME:PORT or udp:NAME:PORT", text)
	}
	return p, nil
}

// talk says something to one peer after the other until ctx ends. Peers that are not there, or do
// not answer, are part of the picture.
func talk(ctx context.Context, hosts string, peers []peer) {
	if len(peers) == 0 {
		return
	}
	for i := rand.IntN(len(peers)); ; i++ {
		if !retry.Sleep(ctx, talkEvery*3/4+rand.N(talkEvery/2)) {
			return
		}
		p := peers[i%len(peers)]
		if addrs := lookup(hosts, p.name); len(addrs) > 0 {
			_ = p.say(ctx, netip.AddrPortFrom(addrs[rand.IntN(len(addrs))], p.port))
		}
	}
}

// say sends a line and waits for the answer to it.
func (p peer) say(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, talkTimeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, string(p.proto), to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	_, err = bufio.NewReader(c).ReadString('\n')
	return err
}

// lookup returns the addresses of a name in a file in the form of hosts(5). The file changes while
// pods come and go, so it is read each time.
func lookup(file, name string) (out []netip.Addr) {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[1] != name {
			continue
		}
		if a, err := netip.ParseAddr(fields[0]); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// parsePeers reads several.
func parsePeers(texts []string) (out []peer, err error) {
	var errs []error
	for _, text := range texts {
		p, err := parsePeer(text)
		out, errs = append(out, p), append(errs, err)
	}
	return out, errors.Join(errs...)
}
