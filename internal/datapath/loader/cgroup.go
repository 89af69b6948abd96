package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// cgroupHook is a program of the node's own processes and where it belongs.
type cgroupHook struct {
	name string
	at   ebpf.AttachType
}

// cgroupHooks returns the hooks in the order in which they are put in place: those that undo come
// before those that do.
func cgroupHooks() []cgroupHook {
	return []cgroupHook{
		{"sock_recvmsg4", ebpf.AttachCGroupUDP4Recvmsg}, {"sock_recvmsg6", ebpf.AttachCGroupUDP6Recvmsg},
		{"sock_getpeername4", ebpf.AttachCgroupInet4GetPeername}, {"sock_getpeername6", ebpf.AttachCgroupInet6GetPeername},
		{"sock_sendmsg4", ebpf.AttachCGroupUDP4Sendmsg}, {"sock_sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
		{"sock_connect4", ebpf.AttachCGroupInet4Connect}, {"sock_connect6", ebpf.AttachCGroupInet6Connect},
	}
}

// hookDir is the directory of the pinned hooks. Unlike programs they do not change name: the
// program behind one is replaced in place, so that no connect goes by without it.
const hookDir = "cgroup"

// attachCgroup puts the hooks on the cgroup, or takes them away if root is empty.
func (l *Loader) attachCgroup(root string) error {
	if root == "" {
		return l.detachCgroup()
	}
	id, err := cgroupID(root)
	if err != nil {
		return err
	}
	if dir := l.maps.Dir(); dir != "" {
		if err := os.MkdirAll(filepath.Join(dir, hookDir), 0o700); err != nil {
			return fmt.Errorf("make the directory of the cgroup's hooks: %w", err)
		}
	}
	var errs []error
	for _, h := range cgroupHooks() {
		if err := l.attachHook(h, root, id); err != nil {
			errs = append(errs, fmt.Errorf("attach %s to cgroup %s: %w", h.name, root, err))
		}
	}
	return errors.Join(errs...)
}

// cgroupID returns the kernel's number of a cgroup, which is its directory's inode.
func cgroupID(root string) (uint64, error) {
	var fsys unix.Statfs_t
	if err := unix.Statfs(root, &fsys); err != nil {
		return 0, fmt.Errorf("look at cgroup %s: %w", root, err)
	}
	if fsys.Type != unix.CGROUP2_SUPER_MAGIC {
		return 0, fmt.Errorf("%s is no cgroup of version 2: mount one there (mount -t cgroup2), or name another directory: %w", root, datapath.ErrUnsupported)
	}
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return 0, fmt.Errorf("look at cgroup %s: %w", root, err)
	}
	return st.Ino, nil
}

func (l *Loader) attachHook(h cgroupHook, root string, id uint64) error {
	p := l.programs[h.name]
	if p == nil {
		return errors.New("the programs are not loaded yet")
	}
	old, err := l.hook(h.name)
	if err != nil {
		return err
	}
	if old != nil {
		info, err := old.Info()
		if err != nil {
			return fmt.Errorf("identify the hook: %w", err)
		}
		if c := info.Cgroup(); c != nil && c.CgroupId == id {
			if info.Program == l.programID(h.name) {
				return l.keepHook(h.name, old)
			}
			if err := old.Update(p); err != nil {
				return fmt.Errorf("replace the program: %w", err)
			}
			return l.keepHook(h.name, old)
		}
	}
	fresh, err := link.AttachCgroup(link.CgroupOptions{Path: root, Attach: h.at, Program: p})
	if err != nil {
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = fmt.Errorf("%w: %w", datapath.ErrUnsupported, err)
		}
		return err
	}
	// The hook of another cgroup, from before a setting changed, goes when the new one is there.
	if old != nil {
		if err := errors.Join(l.dropHook(h.name), old.Close()); err != nil {
			return errors.Join(err, fresh.Close())
		}
	}
	if l.maps.Dir() != "" {
		if err := fresh.Pin(l.hookPath(h.name)); err != nil {
			return errors.Join(fmt.Errorf("pin the hook: %w", err), fresh.Close())
		}
	}
	return l.keepHook(h.name, fresh)
}

func (l *Loader) hookPath(name string) string { return filepath.Join(l.maps.Dir(), hookDir, name) }

func (l *Loader) programID(name string) ebpf.ProgramID { return ebpf.ProgramID(l.ids[name]) }

// hook returns a hook that is in place, nil if there is none.
func (l *Loader) hook(name string) (link.Link, error) {
	if l.maps.Dir() == "" {
		if l.hooks[name] == nil {
			return nil, nil
		}
		return l.hooks[name], nil
	}
	h, err := link.LoadPinnedLink(l.hookPath(name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the pinned hook: %w", err)
	}
	return h, nil
}

// keepHook ends the work on a hook: one that is pinned lives on by its pin.
func (l *Loader) keepHook(name string, h link.Link) error {
	if l.maps.Dir() != "" {
		return h.Close()
	}
	if l.hooks == nil {
		l.hooks = make(map[string]link.Link)
	}
	l.hooks[name] = h
	return nil
}

func (l *Loader) dropHook(name string) error {
	if l.maps.Dir() == "" {
		delete(l.hooks, name)
		return nil
	}
	if err := os.Remove(l.hookPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the pin of the hook: %w", err)
	}
	return nil
}

// detachCgroup takes the hooks away, in the reverse order of their coming.
func (l *Loader) detachCgroup() error {
	var errs []error
	hooks := cgroupHooks()
	slices.Reverse(hooks)
	for _, h := range hooks {
		old := l.hooks[h.name]
		errs = append(errs, l.dropHook(h.name))
		if old != nil {
			errs = append(errs, old.Close())
		}
	}
	if dir := l.maps.Dir(); dir != "" {
		if err := os.Remove(filepath.Join(dir, hookDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// FindCgroup returns where a hierarchy of cgroups of version 2 is mounted, to be the default of who
// names none. On a machine that has both versions it is not the usual place.
func FindCgroup() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("look for cgroups of version 2: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if ok && strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 {
			return fields[4], nil
		}
	}
	return "", fmt.Errorf("no hierarchy of cgroups of version 2 is mounted: %w", datapath.ErrUnsupported)
}
