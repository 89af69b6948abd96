package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/bench"
	"github.com/hawser-net/hawser/internal/bench/child"
)

// realNode is the number of the node with a real agent: far from those of stubs and of pods without
// an agent.
const realNode = 65000

// realAgent is the program that is installed, on a node of its own: a network namespace with one
// link that leads nowhere.
type realAgent struct {
	c       *cluster
	dir     string
	proc    *child.Process
	api     *client.Client
	forward *forwarder
	starts  int
	// enter runs a function on a thread in the node's namespace.
	enter func(func() error) error
	leave func()
}

// newRealAgent makes the node. The agent does not run yet.
func (c *cluster) newRealAgent(ctx context.Context) (a *realAgent, err error) {
	a = &realAgent{c: c, dir: filepath.Join(c.dir, "node")}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	for _, d := range []string{"run", "bpf"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o700); err != nil {
			return a, err
		}
	}
	if a.enter, a.leave, err = newNamespace(); err != nil {
		return a, err
	}
	if err := a.enter(func() error { return a.wire() }); err != nil {
		return a, err
	}
	if err := writeKubeconfig(filepath.Join(a.dir, "kubeconfig"), "https://"+a.forward.l.Addr().String(), c.rest.BearerToken); err != nil {
		return a, err
	}
	if a.api, err = client.New(filepath.Join(a.dir, "run", "a.sock")); err != nil {
		return a, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeOf(realNode)}, Spec: corev1.NodeSpec{PodCIDR: "10.253.232.0/24", PodCIDRs: []string{"10.253.232.0/24"}}}
	_, err = c.client.Urgent.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return a, err
}

// wire gives the namespace its links, and the API server an address there. It is called inside.
func (a *realAgent) wire() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	eth := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}
	addr, err := netlink.ParseAddr(hostOf(realNode).String() + "/10")
	if err != nil {
		return err
	}
	if err := netlink.LinkAdd(eth); err != nil {
		return fmt.Errorf("link of a node: %w", err)
	}
	peer, err := netlink.LinkByName("peer")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(peer), netlink.AddrAdd(eth, addr), netlink.LinkSetUp(eth)); err != nil {
		return fmt.Errorf("links of a node: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a.forward = startForwarder(l, strings.TrimPrefix(a.c.rest.Host, "https://"))
	return nil
}

// start starts the agent. It does not wait for it.
func (a *realAgent) start(flags ...string) (err error) {
	a.starts++
	argv := slices.Concat(a.c.r.cfg.Agent, []string{
		"--node-name", nodeOf(realNode), "--devices", "eth0", "--state-dir", filepath.Join(a.dir, "run"), "--socket-path", filepath.Join(a.dir, "run", "a.sock"),
		"--bpf-root", filepath.Join(a.dir, "bpf"), "--k8s-kubeconfig-path", filepath.Join(a.dir, "kubeconfig"), "--ipam", "kubernetes", "--enable-ipv6=false",
		"--agent-health-port", "0",
	}, flags)
	a.proc, err = child.Start("agent", filepath.Join(a.c.dir, fmt.Sprintf("agent-%d.log", a.starts)), a.enter, argv...)
	return err
}

// knows waits until the agent says that an address has an identity.
func (a *realAgent) knows(ctx context.Context, ip string, timeout time.Duration) error {
	err := child.Poll(ctx, timeout, 20*time.Millisecond, func() error {
		if a.proc.Ended() {
			return nil
		}
		list, err := a.api.IPs(ctx, ip+"/32", nil)
		if err == nil && len(list) == 0 {
			err = errors.New("unknown")
		}
		return err
	})
	if a.proc.Ended() {
		return fmt.Errorf("the agent ended: %s", a.proc.Tail())
	}
	if err != nil {
		return fmt.Errorf("the agent does not know %s: %w", ip, err)
	}
	return nil
}

// close ends the agent and removes the node.
func (a *realAgent) close() error {
	err := a.proc.Stop(20 * time.Second)
	if a.api != nil {
		a.api.Close()
	}
	if a.forward != nil {
		a.forward.close()
	}
	if a.leave != nil {
		a.leave()
	}
	return errors.Join(err, bench.ReleaseMounts(a.dir)) // the agent's BPF file system
}

// newNamespace makes a network namespace that lasts until leave is called, or this process ends: a
// thread stays in it.
func newNamespace() (enter func(func() error) error, leave func(), err error) {
	work := make(chan func() error)
	results := make(chan error)
	go func() {
		// The thread ends with the goroutine, because it is never unlocked: no other may run on it.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread must not get lost: another one does the work while it waits.
			defer runtime.UnlockOSThread()
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread()
				stay(work, results)
			}()
			<-done
			return
		}
		stay(work, results)
	}()
	if err := <-results; err != nil {
		return nil, nil, fmt.Errorf("a network namespace for a node: %w", err)
	}
	enter = func(f func() error) error {
		work <- f
		return <-results
	}
	return enter, func() { close(work) }, nil
}

// stay moves the thread to a new namespace and does work there. The first result is how the move
// went.
func stay(work <-chan func() error, results chan<- error) {
	err := unix.Unshare(unix.CLONE_NEWNET)
	results <- err
	if err != nil {
		return
	}
	for f := range work {
		results <- f()
	}
}

// forwarder takes connections where it listens to an address where it was made.
type forwarder struct {
	l    net.Listener
	wg   sync.WaitGroup
	mu   sync.Mutex
	open map[net.Conn]bool
}

func startForwarder(l net.Listener, target string) *forwarder {
	f := &forwarder{l: l, open: map[net.Conn]bool{}}
	f.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // it was closed
			}
			f.wg.Go(func() { f.carry(in, target) })
		}
	})
	return f
}

func (f *forwarder) carry(in net.Conn, target string) {
	defer in.Close()
	out, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer out.Close()
	f.mu.Lock()
	f.open[in], f.open[out] = true, true
	f.mu.Unlock()
	done := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // the other end's fault, and its business
		done <- struct{}{}
	}
	go pass(out, in)
	go pass(in, out)
	<-done
	in.Close()
	out.Close()
	<-done
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, in)
	delete(f.open, out)
}

func (f *forwarder) close() {
	f.l.Close()
	f.mu.Lock()
	for c := range f.open {
		c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}
