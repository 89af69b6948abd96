package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

func (s *Sandbox) pageLog() string { return s.path("logs", "ui.log") }

// startPage starts the page that shows flows in a browser, on the machine's loopback. A sandbox
// works without: if the program is not there or has no page, nothing is served.
func (s *Sandbox) startPage(ctx context.Context, st *state) error {
	program := filepath.Join(st.BinDir, "hawser")
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) || st.Relay.PID == 0 {
		return nil
	}
	// The process belongs to the sandbox's namespaces, by which it is found and ended; its listener
	// was made here, so the machine's browsers reach it.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("page of flows: %w", err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("page of flows: %w", err)
	}
	defer socket.Close()
	if err := os.Remove(s.pageLog()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("page of flows: %w", err)
	}
	st.Page, err = machine.Daemon{Namespace: s.netns(worldName), Log: s.pageLog(), Files: []*os.File{socket}, Argv: []string{
		program, "ui", "--server", "unix://" + s.relaySocket(), "--listen", "fd://3",
	}}.Start()
	if err == nil {
		err = s.waitPage(ctx, st)
	}
	if err != nil {
		s.say("no page of flows: %v", err)
		st.Page, st.PageURL = machine.Process{}, ""
	}
	return st.save(s.stateFile())
}

// waitPage waits until the page says where it is.
func (s *Sandbox) waitPage(ctx context.Context, st *state) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		alive := st.Page.Alive()
		log, err := os.ReadFile(s.pageLog())
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(log)) {
			if strings.HasPrefix(line, "http://") && strings.HasSuffix(line, "\n") {
				st.PageURL = strings.TrimSpace(line)
				return nil
			}
		}
		if !alive {
			return errors.New(machine.LastLines(s.pageLog(), 1))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("it does not say where it is: %s", machine.LastLines(s.pageLog(), 3))
		}
	}
}
