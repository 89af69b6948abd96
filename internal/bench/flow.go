package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Blocking sockets on threads of their own, one for each side: no scheduler stands between the
// kernel's wake-up and the answer. Every call is bounded by a timeout.

// where says on which processors the two sides run.
type where struct {
	name           string
	client, server int
}

// placements are both sides on one processor, where a round trip is all path and no waiting, and on
// two.
func placements() []where {
	_, cpus := thisMachine()
	all := []where{{"same CPU", 0, 0}}
	if cpus > 1 {
		all = append(all, where{"two CPUs", 0, 1})
	}
	return all
}

const (
	// flowPort is where servers listen; the policies of the rows allow it.
	flowPort    = 8000
	flowTimeout = 3 // seconds
)

// again repeats a call that a signal interrupted: the Go runtime sends itself some, and the kernel
// does not resume a call on a socket that has a timeout.
func again(fn func() (int, error)) (int, error) {
	for {
		n, err := fn()
		if err != unix.EINTR {
			return n, err
		}
	}
}

func read(fd int, buf []byte) (int, error) {
	return again(func() (int, error) { return unix.Read(fd, buf) })
}

func write(fd int, buf []byte) (int, error) {
	return again(func() (int, error) { return unix.Write(fd, buf) })
}

func pin(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}

// tcpSocket returns a socket with timeouts that sends small segments at once.
func tcpSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	tv := unix.Timeval{Sec: flowTimeout}
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func dial(to netip.Addr, port int) (int, error) {
	fd, err := tcpSocket()
	if err != nil {
		return -1, err
	}
	// A connect that a signal interrupts goes on by itself: the second call waits for it.
	_, err = again(func() (int, error) { return 0, unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: to.As4()}) })
	if err != nil && err != unix.EISCONN {
		unix.Close(fd)
		return -1, fmt.Errorf("connect to %v:%d: %w", to, port, err)
	}
	return fd, nil
}

// path is a way from one namespace to an address in another. If service is valid, clients ask that
// address instead, and are led to the server.
type path struct {
	client, server *namespace
	to, service    netip.Addr
}

// dial connects from the namespace that it is called in.
func (p path) dial() (int, error) {
	if p.service.IsValid() {
		return dial(p.service, flowPort)
	}
	return dial(p.to, flowPort)
}

// serve listens in the server's namespace, calls fn with each connection until it returns false,
// and reports its end on the channel. It returns when it listens.
func (p path) serve(cpu int, fn func(fd int) (more bool, err error)) (<-chan error, error) {
	ready, done := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- p.server.do(func() error {
			fd, err := tcpSocket()
			if err == nil {
				defer unix.Close(fd)
				err = errors.Join(
					unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
					unix.Bind(fd, &unix.SockaddrInet4{Port: flowPort, Addr: p.to.As4()}),
					unix.Listen(fd, 128), pin(cpu))
			}
			ready <- err
			if err != nil {
				return err
			}
			for {
				c, err := again(func() (int, error) {
					c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
					return c, err
				})
				if err != nil {
					return fmt.Errorf("accept: %w", err)
				}
				more, err := fn(c)
				unix.Close(c)
				if !more || err != nil {
					return err
				}
			}
		})
	}()
	if err := <-ready; err != nil {
		return nil, errors.Join(err, <-done)
	}
	return done, nil
}

// roundTrips sends one byte to and fro for a while and returns the time of each.
func (p path) roundTrips(d time.Duration, w where) ([]time.Duration, error) {
	done, err := p.serve(w.server, func(c int) (bool, error) {
		if err := unix.SetsockoptInt(c, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return false, err
		}
		buf := make([]byte, 1)
		for {
			if n, err := read(c, buf); n <= 0 {
				return false, err
			}
			if _, err := write(c, buf); err != nil {
				return false, err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	times := make([]time.Duration, 0, 1<<18)
	err = p.client.do(func() error {
		if err := pin(w.client); err != nil {
			return err
		}
		fd, err := p.dial()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		buf := []byte{1}
		begin := time.Now()
		for last := begin; last.Sub(begin) < d; {
			if _, err := write(fd, buf); err != nil {
				return err
			}
			if n, err := read(fd, buf); n != 1 {
				return fmt.Errorf("no answer: %w", err)
			}
			now := time.Now()
			times = append(times, now.Sub(last))
			last = now
		}
		return nil
	})
	return times, errors.Join(err, <-done)
}

// connections opens a connection, sends a byte, reads one and resets it, for a while.
func (p path) connections(d time.Duration, w where) ([]time.Duration, error) {
	done, err := p.serve(w.server, func(c int) (bool, error) {
		buf := make([]byte, 1)
		if n, err := read(c, buf); n <= 0 {
			return false, err
		}
		if _, err := write(c, buf); err != nil {
			return false, err
		}
		return buf[0] != 0, nil
	})
	if err != nil {
		return nil, err
	}
	times := make([]time.Duration, 0, 1<<16)
	once := func(last bool) error {
		fd, err := p.dial()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// A reset leaves no port waiting: a minute's worth of them would not be enough.
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return err
		}
		buf := []byte{1}
		if last {
			buf[0] = 0
		}
		if _, err := write(fd, buf); err != nil {
			return err
		}
		if n, err := read(fd, buf); n != 1 {
			return fmt.Errorf("no answer: %w", err)
		}
		return nil
	}
	err = p.client.do(func() error {
		if err := pin(w.client); err != nil {
			return err
		}
		begin := time.Now()
		for last := begin; last.Sub(begin) < d; {
			if err := once(false); err != nil {
				return err
			}
			now := time.Now()
			times = append(times, now.Sub(last))
			last = now
		}
		return once(true)
	})
	return times, errors.Join(err, <-done)
}

// stream sends as much as goes for a while and returns Gbit/s as received.
func (p path) stream(d time.Duration, w where) (float64, error) {
	var rate float64
	done, err := p.serve(w.server, func(c int) (bool, error) {
		buf := make([]byte, 1<<18)
		total, begin := 0, time.Now()
		for {
			n, err := read(c, buf)
			if n <= 0 {
				rate = float64(total) * 8 / 1e9 / time.Since(begin).Seconds()
				return false, err
			}
			total += n
		}
	})
	if err != nil {
		return 0, err
	}
	err = p.client.do(func() error {
		if err := pin(w.client); err != nil {
			return err
		}
		fd, err := p.dial()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		buf := make([]byte, 1<<17)
		for begin := time.Now(); time.Since(begin) < d; {
			if _, err := write(fd, buf); err != nil {
				return err
			}
		}
		return nil
	})
	return rate, errors.Join(err, <-done)
}

// refuses reports whether nothing gets through to a port: what a drop by policy looks like.
func (p path) refuses(port int) error {
	return p.client.do(func() error {
		fd, err := tcpSocket()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		tv := unix.Timeval{Usec: 200_000}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
			return err
		}
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: p.to.As4()})
		if err == unix.EINPROGRESS || err == unix.ETIMEDOUT || err == unix.EAGAIN {
			return nil
		}
		return fmt.Errorf("port %d should be closed by policy, but: %v", port, err)
	})
}
