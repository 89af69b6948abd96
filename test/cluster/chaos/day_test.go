package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// TestFailedScenarioIsUndone: a program that a scenario has frozen goes on when one of its steps
// has failed, and what it did is undone in the opposite order, each thing once, also when the
// scenario was cancelled.
func TestFailedScenarioIsUndone(t *testing.T) {
	t.Parallel()
	program := exec.CommandContext(t.Context(), "sleep", "600")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Process.Kill(); _ = program.Wait() })
	frozen := func() bool {
		t.Helper()
		_, state, err := machine.ReadStat(program.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return state == 'T'
	}
	failed := errors.New("a step has failed")
	d := &day{out: io.Discard}
	var undone []string
	ctx, cancel := context.WithCancel(t.Context())
	err := d.act(ctx, scenario{name: "freeze", run: func(ctx context.Context, d *day) error {
		d.undoing(ctx, func(ctx context.Context) error {
			undone = append(undone, "frozen")
			return errors.Join(ctx.Err(), unix.Kill(program.Process.Pid, unix.SIGCONT))
		})
		if err := unix.Kill(program.Process.Pid, unix.SIGSTOP); err != nil {
			return err
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(program.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !frozen() {
			t.Errorf("the program is not frozen: %v", err)
		}
		now := d.undoing(ctx, func(context.Context) error {
			undone = append(undone, "killed")
			return nil
		})
		d.undoing(ctx, func(context.Context) error {
			undone = append(undone, "last")
			return errors.New("no way back")
		})
		if err := now(); err != nil {
			t.Error(err)
		}
		cancel()
		return failed
	}})
	if !errors.Is(err, failed) || !strings.Contains(err.Error(), "undo freeze: no way back") {
		t.Errorf("the scenario: %v", err)
	}
	if got := strings.Join(undone, " "); got != "killed last frozen" {
		t.Errorf("undone: %s", got)
	}
	if frozen() {
		t.Error("the program stays frozen")
	}
	if err := d.act(t.Context(), scenario{run: func(context.Context, *day) error { return nil }}); err != nil || len(undone) != 3 {
		t.Errorf("the next scenario has undone more of the first: %v, %v", undone, err)
	}
}

// TestCNIConfigIsPutBack: a scenario that ends while no node has its CNI configuration puts it
// back.
func TestCNIConfigIsPutBack(t *testing.T) {
	t.Parallel()
	d := &day{out: io.Discard}
	for _, name := range []string{"n1", "n2"} {
		n := kube.NodeInfo{Name: name, Dir: t.TempDir()}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(n.Dir, conflist)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(n.Dir, conflist), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		d.nodes = append(d.nodes, n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.act(ctx, scenario{name: "cni-config", run: cniConfig}); !errors.Is(err, context.Canceled) {
		t.Errorf("the scenario: %v", err)
	}
	for _, n := range d.nodes {
		if data, err := os.ReadFile(filepath.Join(n.Dir, conflist)); err != nil || string(data) != n.Name {
			t.Errorf("the configuration of %s: %q, %v", n.Name, data, err)
		}
	}
}
