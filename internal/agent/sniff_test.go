package agent

import (
	"maps"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/testenv"
)

// sniff listens on all interfaces of a namespace until the test ends. read says what is to be
// counted of a frame, if anything. What sniff returns gives the counts so far.
func sniff[K comparable](t testing.TB, ns *testenv.NetNS, read func(frame []byte) (K, bool)) func() map[K]int {
	t.Helper()
	const everything = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network byte order
	var fd int
	ns.Must(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, everything)
		return err
	})
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[K]int{}
	done, stop := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done; unix.Close(fd) })
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				continue
			}
			if k, ok := read(buf[:n]); ok {
				mu.Lock()
				seen[k]++
				mu.Unlock()
			}
		}
	}()
	return func() map[K]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(seen)
	}
}
