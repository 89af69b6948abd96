// Package child runs the programs that are measured, and what they need, as children of the one
// that measures.
package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a child that runs on its own until it is stopped.
type Process struct {
	Cmd  *exec.Cmd
	Name string
	log  string
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed
}

// Start starts a program with its output appended to a file. enter, if not nil, runs a function on
// the thread where the program is to run, for as long as it runs.
func Start(name, log string, enter func(func() error) error, argv ...string) (*Process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &Process{Name: name, Cmd: exec.Command(argv[0], argv[1:]...), log: log, done: make(chan struct{})}
	p.Cmd.Stdout, p.Cmd.Stderr = f, f
	// Out of the terminal's group: after Ctrl-C this program ends its children in order. If it
	// cannot any more, the kernel does.
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		if enter == nil {
			enter = onThread
		}
		if err := enter(func() error {
			err := p.Cmd.Start()
			started <- err
			if err == nil {
				p.err = p.Cmd.Wait()
			}
			return nil
		}); err != nil {
			started <- err // it could not enter
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// onThread runs f on a thread of its own: the kernel takes the end of the thread that started a
// program for the end of the parent.
func onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}

// Stop ends the process politely, or after a while otherwise, and waits for it.
func (p *Process) Stop(polite time.Duration) error {
	if p == nil || p.Ended() {
		return nil
	}
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(polite):
	}
	p.Kill()
	return fmt.Errorf("%s did not end within %v", p.Name, polite)
}

// Done is closed when the process has ended; Err says how afterwards.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the process ended, which it has.
func (p *Process) Err() error { return p.err }

// Kill ends the process at once and waits for it.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.done
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Tail returns the end of the process's log.
func (p *Process) Tail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}

// ticksPerSecond is the unit of times in /proc: USER_HZ, which is 100 on every architecture that Go
// runs on (see proc(5)).
const ticksPerSecond = 100

// Use is what a process has used so far.
type Use struct {
	CPU    time.Duration
	Memory uint64 // resident now, in bytes
	Peak   uint64 // at most resident so far
}

// Usage reads what a process has used.
func Usage(pid int) (Use, error) {
	var u Use
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	// The name is in brackets and may hold anything.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return u, fmt.Errorf("process %d: its status is too short", pid)
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return u, err
	}
	u.CPU = time.Duration(user+system) * time.Second / ticksPerSecond
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		var kb uint64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			u.Memory = kb << 10
		} else if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			u.Peak = kb << 10
		}
	}
	if u.Memory == 0 {
		return u, fmt.Errorf("process %d has no memory: it has ended", pid)
	}
	return u, nil
}

// Usage reads what the process has used.
func (p *Process) Usage() (Use, error) { return Usage(p.Cmd.Process.Pid) }

// Poll calls fn until it succeeds, and returns its last error when time is up or the context ends.
// What it waits for gives no notice.
func Poll(ctx context.Context, timeout, every time.Duration, fn func() error) error {
	end := time.NewTimer(timeout)
	defer end.Stop()
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-end.C:
			return err
		case <-time.After(every):
		}
	}
}
