package link

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/validate"
)

// Names and numbers that this package uses on the host.
const (
	// HostDevice carries the router addresses; traffic between the host and remote pods passes it.
	HostDevice = "hawser_host"
	// NetDevice is the other end of HostDevice. Packets that leave HostDevice without having been
	// redirected by a program end here and are dropped.
	NetDevice = "hawser_net"
	// TunnelDevice is the VXLAN device of tunnel mode.
	TunnelDevice = "hawser_vxlan"
	// EndpointPrefix starts the name of every host-side pod interface.
	EndpointPrefix = "lxc"
	// RouteProtocol marks Hawser's routes (struct rtmsg, rtm_protocol). Numbers above 4 are free
	// for routing daemons.
	RouteProtocol = 72
	// RemovalGroup is the interface group into which interfaces are put that are about to be
	// removed (IFLA_GROUP); the bytes are "hwsr".
	RemovalGroup = 0x68777372
	// DefaultTunnelPort is the UDP port of VXLAN if Node.TunnelPort is 0.
	DefaultTunnelPort = 8472
)

// Config is the network namespace to work in and the pace of removals.
type Config struct {
	// NetNSFD is an open descriptor of the network namespace; 0 is the one of the calling thread
	// at the time of New. The caller keeps ownership and must keep it open until Close.
	NetNSFD int
	// DeleteWindow is how long removals are gathered before they are done as one group.
	DeleteWindow time.Duration
	// PodPrograms are the names of the programs by which an interface is known to be that of a pod
	// of this product.
	PodPrograms []string
}

// Defaults fills in the fields that are zero.
func (c *Config) Defaults() {
	c.DeleteWindow = cmp.Or(c.DeleteWindow, 3*time.Millisecond)
}

// Validate reports all faults of c.
func (c Config) Validate() error {
	var errs validate.Errors
	errs.If(c.NetNSFD < 0, "network namespace descriptor %d is negative", c.NetNSFD)
	errs.If(c.DeleteWindow < 0 || c.DeleteWindow > time.Second, "delete window %v is not within 0 to 1s", c.DeleteWindow)
	return errs.Err()
}

// Links implements datapath.Links on the kernel.
type Links struct {
	cfg  Config
	log  *slog.Logger
	h    *netlink.Handle
	rt   *conn
	rm   *conn    // for removals, which take long
	ns   *os.File // the namespace, for sysctls and nftables
	ipv6 bool     // the kernel has IPv6

	nodeMu     sync.Mutex     // serialises SetNode and CleanUp
	plainTable bool           // under nodeMu: the kernel cannot leave packets out of connection tracking
	node       *datapath.Node // under nodeMu: what SetNode was last given, nil before
	plain      []netip.Addr   // under nodeMu: pods that are not masqueraded, sorted
	native     int            // under nodeMu: the device towards other nodes, of the last SetNode
	cloud      map[int]bool   // under nodeMu: interfaces of the last Interfaces.Set
	vpc        []netip.Prefix // under nodeMu: networks of the cloud, as Interfaces.Set has them
	vpcKnown   bool           // under nodeMu: it has been called
	vpcFailed  bool           // under nodeMu: they could not be taken out of masquerading
	pathsGone  bool           // under nodeMu: no rules of a cloud's interfaces are left

	mu               sync.Mutex
	router4, router6 netip.Addr     // of the last SetNode
	tunnelWaiting    int            // index of a tunnel device that is down for want of a program
	doomed           map[int]string // interface index -> name (may be empty), waiting for removal
	raised           map[int]bool   // interfaces of endpoints that were brought up

	wake     chan struct{}   // signals doomed to Run
	removeMu sync.Mutex      // one removal at a time
	removed  func(batch int) // test edge: called after each group was removed
}

var _ datapath.Links = (*Links)(nil)

// New opens the sockets it needs in the namespace of cfg. Close releases them.
func New(cfg Config, log *slog.Logger) (*Links, error) {
	cfg.Defaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	l := &Links{
		cfg:    cfg,
		log:    log,
		doomed: map[int]string{}, raised: map[int]bool{},
		wake: make(chan struct{}, 1),
	}
	var err error
	if l.ns, err = openNS(cfg.NetNSFD); err != nil {
		return nil, fmt.Errorf("link: open network namespace: %w", err)
	}
	err = l.inNS(func() error {
		if l.h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return fmt.Errorf("open netlink handle: %w", err)
		}
		if l.rt, err = newConn(); err != nil {
			return err
		}
		if l.rm, err = newConn(); err != nil {
			return err
		}
		_, statErr := os.Stat("/proc/sys/net/ipv6")
		l.ipv6 = statErr == nil
		return nil
	})
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("link: %w", err)
	}
	return l, nil
}

// Close releases the sockets. Removals still queued are dropped: call Flush first.
func (l *Links) Close() {
	for _, c := range []*conn{l.rt, l.rm} {
		if c != nil {
			c.close()
		}
	}
	if l.h != nil {
		l.h.Close()
	}
	if l.ns != nil {
		l.ns.Close()
	}
}

// openNS returns a descriptor of our own for the namespace behind fd, or of the calling thread's if
// fd is 0.
func openNS(fd int) (*os.File, error) {
	if fd == 0 {
		return os.Open("/proc/thread-self/ns/net")
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(dup), "netns"), nil
}

// inNS calls fn on a thread that is in the node's namespace. If the caller's thread already is, fn
// runs there; otherwise on a thread of its own which is thrown away if it can't be brought back.
func (l *Links) inNS(fn func() error) error { return visit(l.ns, fn) }

// visit calls fn on a thread that is in a network namespace.
func visit(ns *os.File, fn func() error) error {
	runtime.LockOSThread()
	cur, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer cur.Close()
	if sameFile(cur, ns) {
		defer runtime.UnlockOSThread()
		return fn()
	}
	if err := netns.Set(netns.NsHandle(ns.Fd())); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	err = fn()
	if back := netns.Set(netns.NsHandle(cur.Fd())); back != nil {
		// The thread stays locked to this goroutine and so ends with it.
		return errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

func sameFile(a, b *os.File) bool {
	sa, errA := a.Stat()
	sb, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(sa, sb)
}
