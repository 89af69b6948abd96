package restapi

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/testenv"
)

// TestSocketRemoved: a socket whose file another program removes, alone or with its directory, is
// open again within seconds, and one that cannot be opened is reported. Connections from before
// last.
func TestSocketRemoved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(dir, "a.sock")
	var mu sync.Mutex
	var reports []bool
	l, err := Listen(path, "--socket-path", slog.New(slog.NewTextHandler(t.Output(), nil)), func(err error) {
		mu.Lock()
		defer mu.Unlock()
		reports = append(reports, err == nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
			serving.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	defer serving.Wait()
	defer l.Close()
	answers := func(conn net.Conn) error {
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, 1))
		return err
	}
	first, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	open := func(when string) {
		t.Helper()
		testenv.Eventually(t, 4*lookInterval, func() string {
			conn, err := net.Dial("unix", path)
			if err == nil {
				defer conn.Close()
				err = answers(conn)
			}
			if err != nil {
				return fmt.Sprintf("%s: %v", when, err)
			}
			return ""
		})
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
			t.Errorf("%s: the socket is %v, %v", when, info, err)
		}
	}
	open("at first")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	open("its file was removed")
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil { // it cannot be made
		t.Fatal(err)
	}
	said := func(want ...bool) {
		t.Helper()
		testenv.Eventually(t, 4*lookInterval, func() string {
			mu.Lock()
			defer mu.Unlock()
			if len(reports) < len(want) || reports[len(want)-1] != want[len(want)-1] {
				return fmt.Sprintf("reported so far: %v, want %v", reports, want)
			}
			return ""
		})
	}
	said(true, false)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	open("its directory was removed")
	mu.Lock()
	defer mu.Unlock()
	if n := len(reports); n < 3 || !reports[n-1] {
		t.Errorf("reported: %v", reports)
	}
	if err := answers(first); err != nil {
		t.Errorf("a connection of before: %v", err)
	}
}
