package machine

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Clear ends the processes in the namespaces that are kept below dir, as EndAll does, and unmounts
// everything there.
func Clear(dir string, polite time.Duration) (ended int, err error) {
	mounts, err := MountsBelow(dir)
	if err != nil {
		return 0, err
	}
	namespaces := map[Inode]bool{}
	for _, m := range mounts {
		if m.Kind == "nsfs" {
			if id, err := NamespaceID(m.Path); err == nil {
				namespaces[id] = true
			}
		}
	}
	for _, own := range []string{"/proc/1/ns/net", "/proc/self/ns/net"} { // not ours, whatever is mounted there
		if id, err := NamespaceID(own); err == nil {
			delete(namespaces, id)
		}
	}
	if ended, err = EndAll(namespaces, polite); err != nil {
		return ended, err
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return ended, fmt.Errorf("unmount %s: %w", m.Path, err)
		}
	}
	return ended, nil
}
