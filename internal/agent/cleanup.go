package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/agent/statedir"
	"github.com/hawser-net/hawser/internal/cniconf"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/deletequeue"
)

// CleanUp removes everything that an agent with this configuration leaves on the node when it
// stops: devices, routes, masquerading, pinned maps and programs, state, what the plugin left in
// files, and the CNI configuration. Pods that are still there lose their network. It refuses while
// an agent runs, and leaves alone what another network plugin has in the same places: that may
// serve the node by now.
func CleanUp(cfg Config, log *slog.Logger, out io.Writer) error {
	sockets := []string{cfg.SocketPath, healthSocket(cfg.SocketPath), cfg.Flows.SocketPath}
	if err := checkUnused(sockets); err != nil {
		return err
	}
	state, err := statedir.Lock(context.Background(), cfg.StateDir)
	if err != nil {
		return err
	}
	defer state.Close()
	var errs []error
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
			return
		}
		fmt.Fprintln(out, "removed", what)
	}
	stays := func(what ...string) {
		for _, w := range what {
			fmt.Fprintln(out, "left alone", w+", which is not Hawser's")
		}
	}
	cni, err := cniconf.New(cfg.CNI, log)
	if err == nil {
		err = cni.Remove()
	}
	step("the CNI configuration", err)
	foreign := errors.Is(err, cniconf.ErrForeign)
	links, err := link.New(linkConfig(), log)
	if err != nil {
		return err
	}
	defer links.Close()
	others, err := removePods(links)
	step("the pods' interfaces", err)
	stays(others...)
	step("programs on the node's devices", links.RemoveFilters(loader.FromNetdev, loader.ToNetdev, loader.FromDevice, loader.ToDevice))
	step("devices, routes and masquerading", links.CleanUp())
	step("pinned maps and programs in "+cfg.mapsDir(), removePins(cfg.mapsDir()))
	queue := deletequeue.Dir(cfg.SocketPath)
	paths := append(sockets, deletequeue.Unreleased(queue), deletequeue.AttachmentLock(queue), deletequeue.Answered(queue))
	if !foreign { // else that plugin may have the same
		paths = append(paths, queue)
		if log := cfg.CNI.LogFile; log != "" {
			paths = append(paths, log, log+".1") // the plugin moves a full one there
		}
	}
	for _, path := range paths {
		step(path, os.RemoveAll(path))
	}
	left, err := state.Remove()
	step("state in "+cfg.StateDir, err)
	stays(left...)
	return errors.Join(errs...)
}

// checkUnused reports that an agent answers at one of its sockets.
func checkUnused(sockets []string) error {
	for _, path := range sockets {
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			conn.Close()
		}
		if path != "" && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("an agent answers at %s, Hawser's or that of the network plugin that has taken its place: nothing was removed. "+
				"Stop it on this node, and call cleanup before the next plugin is installed here", path)
		}
	}
	return nil
}

// removePins removes a directory of pinned maps and programs, also where it is a BPF filesystem
// mounted by the agent, in which the kernel does not allow removal of all files.
func removePins(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// removePods deletes the interfaces of Hawser's pods: without an agent nothing would ever take
// their programs away. It returns those of other network plugins.
func removePods(links *link.Links) (others []string, err error) {
	found, err := links.EndpointLinks()
	if err != nil {
		return nil, err
	}
	for _, l := range found {
		if !l.Ours {
			others = append(others, "interface "+l.Name)
			continue
		}
		if err := links.DeleteEndpoint(l.Name, l.IfIndex); err != nil {
			return nil, err
		}
	}
	return others, links.Flush()
}
