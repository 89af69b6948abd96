package policydir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// notice is sent when a file of the directory changed.
type notice struct {
	name string
	// whole means that the change is complete: the writer has closed the file, or it was renamed
	// into place, or is gone. Otherwise it has been made or changed, and more may follow.
	whole bool
}

// The changes that inotify(7) reports. What makes a file whole is known to the kernel but not
// to portable notifiers, which is why none is used.
const (
	wholeChanges = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_Q_OVERFLOW
	otherChanges = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB
)

// notifications follows a directory until stop is called, which waits for its goroutine. The
// channel is closed when there will be no more, at the latest by stop. lost is called when the
// kernel dropped some.
func notifications(dir string, lost func(error)) (notices <-chan notice, stop func(), err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("inotify: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify") // non-blocking, so that Close ends a Read
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_ONLYDIR|wholeChanges&^unix.IN_Q_OVERFLOW|otherChanges); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("inotify: watch %s: %w", dir, err), f.Close())
	}
	out, done := make(chan notice), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(out)
		buf := make([]byte, 64<<10)
		for {
			n, err := f.Read(buf)
			if err != nil {
				if !errors.Is(err, fs.ErrClosed) {
					lost(err)
				}
				return
			}
			for _, e := range parseNotices(buf[:n], lost) {
				select {
				case out <- e:
				case <-done:
					return
				}
			}
		}
	})
	return out, func() {
		close(done)
		_ = f.Close() // nothing was written
		wg.Wait()
	}, nil
}

// parseNotices reads the kernel's records: wd, mask, cookie and length of the name, each of 32
// bits, then the name, padded with zeros.
func parseNotices(buf []byte, lost func(error)) []notice {
	var out []notice
	for len(buf) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(buf[4:]), int(binary.NativeEndian.Uint32(buf[12:]))
		buf = buf[unix.SizeofInotifyEvent:]
		if size > len(buf) {
			break // cannot be: the kernel writes whole records
		}
		name := strings.TrimRight(string(buf[:size]), "\x00")
		buf = buf[size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			lost(errors.New("the kernel's queue was full"))
		}
		if mask&(wholeChanges|otherChanges) != 0 {
			out = append(out, notice{name: name, whole: mask&wholeChanges != 0})
		}
	}
	return out
}
