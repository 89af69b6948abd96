package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace in which this process opens sockets. It keeps the namespace for
// as long as it is open.
type Namespace struct {
	do   chan func()
	done chan struct{}
}

// OpenNamespace enters the namespace that path leads to, with a thread of its own that stays there
// until Close.
func OpenNamespace(path string) (*Namespace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("namespace: %w", err)
	}
	defer f.Close()
	n := &Namespace{do: make(chan func()), done: make(chan struct{})}
	entered := make(chan error)
	go func() {
		defer close(n.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			entered <- fmt.Errorf("enter namespace %s: %w", path, err)
			return
		}
		entered <- nil
		for fn := range n.do {
			fn()
		}
	}()
	if err := <-entered; err != nil {
		<-n.done
		return nil, err
	}
	return n, nil
}

// Close gives up the namespace. Sockets opened in it live on. No other call may be under way or
// follow.
func (n *Namespace) Close() {
	close(n.do)
	<-n.done
}

// inside runs fn on the namespace's thread. It must not block: everybody waits for that thread.
func (n *Namespace) inside(fn func()) {
	ran := make(chan struct{})
	n.do <- func() { fn(); close(ran) }
	<-ran
}

// Socket opens a socket of the namespace, which does not block.
func (n *Namespace) Socket(domain, typ, proto int) (fd int, err error) {
	n.inside(func() { fd, err = unix.Socket(domain, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto) })
	return fd, err
}

// buffer is how much a socket may hold back: a machine that is busy elsewhere must not look like a
// network that drops.
const buffer = 4 << 20

// Dial connects from the namespace to an address, by "tcp" or "udp", and gives up after the
// timeout. An attempt without an answer ends with os.ErrDeadlineExceeded.
func (n *Namespace) Dial(network string, to netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	typ := unix.SOCK_STREAM
	if network == "udp" {
		typ = unix.SOCK_DGRAM
	}
	domain := unix.AF_INET
	var addr unix.Sockaddr = &unix.SockaddrInet4{Port: int(to.Port())}
	if to.Addr().Is6() {
		domain, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	} else {
		addr.(*unix.SockaddrInet4).Addr = to.Addr().As4()
	}
	fd, err := n.Socket(domain, typ, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer)
	if err := unix.Connect(fd, addr); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	f := os.NewFile(uintptr(fd), "")
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil || network == "udp" {
		return c, err
	}
	if err := connected(c.(*net.TCPConn), timeout); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// connected waits until the handshake is over.
func connected(c *net.TCPConn, timeout time.Duration) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		if code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
			failed = errors.Join(err, unix.Errno(code))
			return true
		}
		_, err := unix.Getpeername(int(fd))
		return err == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return c.SetWriteDeadline(time.Time{})
}

// Listen opens a listening TCP socket for both families on a port.
func (n *Namespace) Listen(port uint16) (l net.Listener, err error) {
	n.inside(func() { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)) })
	return l, err
}

// ListenPacket opens a UDP socket for one family on a port. Answers must leave from the address
// that was asked, so addr names it.
func (n *Namespace) ListenPacket(addr netip.AddrPort) (c *net.UDPConn, err error) {
	n.inside(func() { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr)) })
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return c, raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) })
}

// Addrs returns the namespace's own global addresses.
func (n *Namespace) Addrs() (out []netip.Addr, err error) {
	var all []net.Addr
	n.inside(func() { all, err = net.InterfaceAddrs() })
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr())
		}
	}
	return out, err
}

// Retransmits returns how many segments of a connection were sent again, since its start.
func Retransmits(c net.Conn) int {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0
	}
	var total int
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			total = int(info.Total_retrans)
		}
	})
	return total
}

// Reset ends a TCP connection at once, without leaving its port behind for minutes.
func Reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}
