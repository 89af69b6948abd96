package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// CreateNamespace makes an empty network namespace, kept by a mount on a new file at path, with its
// loopback up. The file must not exist.
func CreateNamespace(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("new namespace: %w", err)
	}
	_ = f.Close()
	err = OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err := unix.Mount(self, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("loopback: %w", err)
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		return errors.Join(fmt.Errorf("new namespace %s: %w", filepath.Base(path), err), RemoveNamespace(path))
	}
	return nil
}

// RemoveNamespace gives up the mount that keeps a namespace. What is missing is no error.
func RemoveNamespace(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// InNamespace runs fn on a thread inside the namespace kept at path. Sockets opened and processes
// started by fn itself belong to the namespace; goroutines started by it do not.
func InNamespace(path string, fn func() error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	defer f.Close()
	return OnThread(func() error {
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace %s: %w", filepath.Base(path), err)
		}
		return fn()
	})
}

// OnThread runs fn on a thread of its own. The thread is never unlocked, so the runtime ends it,
// and its namespace with it, instead of giving it to other goroutines. The main thread can't be
// ended, and /proc/self speaks of it: it is kept busy while another one does the work.
func OnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- OnThread(fn)
			return
		}
		finished := false
		defer func() {
			// fn may leave through runtime.Goexit (t.FailNow): the caller must not wait for ever.
			if !finished {
				done <- errors.New("function on a namespace thread did not return")
			}
		}()
		err := fn()
		finished = true
		done <- err
	}()
	return <-done
}

// Inode identifies a namespace for as long as something keeps it.
type Inode struct{ dev, ino uint64 }

// NamespaceID returns the identity of the namespace that a path leads to, such as a mount that
// keeps it or /proc/PID/ns/net.
func NamespaceID(path string) (Inode, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Inode{}, err
	}
	return Inode{dev: st.Dev, ino: st.Ino}, nil
}
