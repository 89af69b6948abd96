package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	cgroupBase = "hawser-sandbox"
)

// cgroups are the hierarchies of this machine: one of version 2, or several of version 1 with
// perhaps one of version 2 beside them.
type cgroups struct {
	// dirs are where the hierarchies are mounted.
	dirs []string
	// unified is the one of version 2; empty if there is none.
	unified string
}

func findCgroups() (cgroups, error) {
	var c cgroups
	version2 := func(dir string) bool {
		var st unix.Statfs_t
		return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
	}
	if version2(cgroupRoot) {
		return cgroups{dirs: []string{cgroupRoot}, unified: cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return c, fmt.Errorf("cgroups: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() { // or a link to another one: cpu to cpu,cpuacct
			continue
		}
		dir := filepath.Join(cgroupRoot, e.Name())
		if version2(dir) {
			c.unified = dir
		}
		c.dirs = append(c.dirs, dir)
	}
	if len(c.dirs) == 0 {
		return c, fmt.Errorf("no cgroup hierarchy is mounted below %s", cgroupRoot)
	}
	return c, nil
}

// nodeCgroup is a node's cgroup in every hierarchy. For the node it is the root. In the hierarchy
// of version 2 the node's own processes are in leafCgroup below it; the kubelet puts pods beside
// that.
func nodeCgroup(cluster, node string) string { return filepath.Join("/", cgroupBase, cluster, node) }

const leafCgroup = "init"

// create makes a node's cgroup in each hierarchy. What a new one of version 1 lacks to take
// processes is copied from above, and what one of version 2 does not pass on is passed on.
func (c cgroups) create(path string) error {
	for _, dir := range c.dirs {
		at := dir
		for elem := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			if dir == cgroupRoot {
				if err := delegate(at); err != nil {
					return err
				}
			}
			above := at
			at = filepath.Join(at, elem)
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("cgroup: %w", err)
			}
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				if dir == cgroupRoot {
					break
				}
				data, err := os.ReadFile(filepath.Join(above, f))
				if errors.Is(err, fs.ErrNotExist) {
					break // not the hierarchy of cpusets
				}
				if err = errors.Join(err, os.WriteFile(filepath.Join(at, f), data, 0o644)); err != nil {
					return fmt.Errorf("cgroup: %w", err)
				}
			}
		}
	}
	return nil
}

// delegate lets the cgroups below dir have the controllers that dir has.
func delegate(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for controller := range strings.FieldsSeq(string(have)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("cgroup %s: controller %s: %w", dir, controller, err)
		}
	}
	return nil
}

// remove removes a cgroup and those below it from each hierarchy. They must be without processes.
// The base goes with the last cluster.
func (c cgroups) remove(path string) error {
	var errs []error
	for _, dir := range c.dirs {
		var found []string
		err := filepath.WalkDir(filepath.Join(dir, path), func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && d.IsDir() {
				found = append(found, p)
			}
			return err
		})
		errs = append(errs, err)
		for _, p := range slices.Backward(found) {
			if err := unix.Rmdir(p); err != nil && err != unix.ENOENT {
				errs = append(errs, fmt.Errorf("cgroup %s: %w", p, err))
			}
		}
		_ = unix.Rmdir(filepath.Join(dir, cgroupBase)) // fails unless it is empty
	}
	return errors.Join(errs...)
}

// hierarchy is where and how one is mounted.
type hierarchy struct{ path, kind, options string }

// cgroupMounts lists the mounts of hierarchies, and the file system that holds their directories if
// there is one, outer ones first.
func cgroupMounts() ([]hierarchy, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseCgroupMounts(string(data)), nil
}

// parseCgroupMounts reads a mountinfo (see proc_pid_mountinfo(5)).
func parseCgroupMounts(text string) []hierarchy {
	var out []hierarchy
	for line := range strings.Lines(text) {
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 || (fields[4] != cgroupRoot && !strings.HasPrefix(fields[4], cgroupRoot+"/")) {
			continue
		}
		h := hierarchy{path: fields[4], kind: kind[0]}
		switch h.kind {
		case "cgroup": // the options name the controllers; how it is mounted is not asked for
			for o := range strings.SplitSeq(kind[2], ",") {
				if o != "rw" && o != "ro" && o != "xattr" && !strings.HasPrefix(o, "release_agent=") {
					h.options = strings.Trim(h.options+","+o, ",")
				}
			}
		case "cgroup2":
		case "tmpfs":
			h.options = "mode=755"
		default:
			continue
		}
		out = append(out, h)
	}
	return out
}

// mount mounts a hierarchy as the process's namespace of cgroups has it.
func (h hierarchy) mount() error {
	if err := os.MkdirAll(h.path, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(h.kind, h.path, h.kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, h.options); err != nil {
		return fmt.Errorf("mount %s: %w", h.path, err)
	}
	// Controllers that share a hierarchy are found by their own names, too.
	name := filepath.Base(h.path)
	if h.kind == "cgroup" && strings.Contains(name, ",") {
		for one := range strings.SplitSeq(name, ",") {
			if err := os.Symlink(name, filepath.Join(filepath.Dir(h.path), one)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return nil
}
