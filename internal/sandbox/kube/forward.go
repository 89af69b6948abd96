package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Forward serves connections of the listener that descriptor fd is by connecting each to addr,
// until ctx ends. The listener may be of another network namespace than this process: that is what
// it is for.
func Forward(ctx context.Context, fd int, addr string) error {
	f := os.NewFile(uintptr(fd), "listener")
	l, err := net.FileListener(f) // has a descriptor of its own
	_ = f.Close()
	if err != nil {
		return fmt.Errorf("descriptor %d: %w", fd, err)
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		conns.Go(func() { forward(ctx, conn, addr) })
	}
}

// forward copies both ways until both sides have said all, or ctx ends.
func forward(ctx context.Context, from net.Conn, addr string) {
	defer from.Close()
	to, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer to.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })
	defer stop()
	done := make(chan struct{})
	pipe := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src)
		if half, ok := dst.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	}
	go func() { pipe(to, from); close(done) }()
	pipe(from, to)
	<-done
}
