package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/cniconf"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/deletequeue"
)

// CleanUp removes everything that an agent with this configuration leaves on the node when it
// stops: devices, routes, masquerading, pinned maps and programs, state, what the plugin left in
// files, and the CNI configuration. Pods that are still there lose their network. It refuses while
// an agent runs.
func CleanUp(cfg Config, log *slog.Logger, out io.Writer) error {
	unlock, err := lockState(context.Background(), cfg.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
			return
		}
		fmt.Fprintln(out, "removed", what)
	}
	cni, err := cniconf.New(cfg.CNI, log)
	if err == nil {
		err = cni.Remove()
	}
	step("the CNI configuration", err)
	links, err := link.New(link.Config{}, log)
	if err != nil {
		return err
	}
	defer links.Close()
	step("the pods' interfaces", removePods(links))
	step("programs on the node's devices", links.RemoveFilters(loader.FromNetdev, loader.ToNetdev, loader.FromDevice, loader.ToDevice))
	step("devices, routes and masquerading", links.CleanUp())
	step("pinned maps and programs in "+cfg.mapsDir(), removePins(cfg.mapsDir()))
	queue := deletequeue.Dir(cfg.SocketPath)
	paths := append(stateDirs(cfg.StateDir), queue, deletequeue.Unreleased(queue), deletequeue.AttachmentLock(queue))
	if log := cfg.CNI.LogFile; log != "" {
		paths = append(paths, log, log+".1") // the plugin moves a full one there
	}
	paths = append(paths, cfg.Flows.SocketPath, healthSocket(cfg.SocketPath), cfg.SocketPath,
		filepath.Join(cfg.StateDir, lockName)) // which is last, and still held
	for _, path := range paths {
		step(path, os.RemoveAll(path))
	}
	// If it is not empty, the rest belongs to another program.
	_ = os.Remove(cfg.StateDir)
	return errors.Join(errs...)
}

// removePins removes a directory of pinned maps and programs, also where it is a BPF filesystem
// mounted by the agent, in which the kernel does not allow removal of all files.
func removePins(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// removePods deletes all pod interfaces: without an agent nothing would ever take their programs
// away.
func removePods(links *link.Links) error {
	found, err := links.EndpointLinks()
	if err != nil {
		return err
	}
	for _, l := range found {
		if err := links.DeleteEndpoint(l.Name, l.IfIndex); err != nil {
			return err
		}
	}
	return links.Flush()
}
