package scale

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

// process is a child that runs on its own until it is stopped.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed
}

// startProcess starts a program with its output appended to a file. enter, if not nil, runs what
// starts it on the thread where it is to run, which must last as long as the program.
func startProcess(name, log string, enter func(func() error) error, argv ...string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), log: log, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	// Out of the terminal's group: after Ctrl-C this program ends its children in order. If it
	// cannot any more, the kernel does.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		if enter == nil {
			// The kernel takes the end of the thread that started it for the end of the parent.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			enter = func(f func() error) error { return f() }
		}
		err := enter(p.cmd.Start)
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// stop ends the process politely, or after a while otherwise, and waits for it.
func (p *process) stop(polite time.Duration) error {
	if p == nil || p.ended() {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(polite):
	}
	p.kill()
	return fmt.Errorf("%s did not end within %v", p.name, polite)
}

// kill ends the process at once and waits for it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// tail returns the end of the process's log.
func (p *process) tail() string {
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

// use is what a process has used so far.
type use struct {
	cpu    time.Duration
	memory uint64 // resident now, in bytes
	peak   uint64 // at most resident so far
}

// usage reads what a process has used.
func usage(pid int) (use, error) {
	var u use
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
	u.cpu = time.Duration(user+system) * time.Second / ticksPerSecond
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		var kb uint64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			u.memory = kb << 10
		} else if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			u.peak = kb << 10
		}
	}
	if u.memory == 0 {
		return u, fmt.Errorf("process %d has no memory: it has ended", pid)
	}
	return u, nil
}

func (p *process) usage() (use, error) { return usage(p.cmd.Process.Pid) }

// poll calls fn until it succeeds, and returns its last error when time is up or the context ends.
// What it waits for gives no notice.
func poll(ctx context.Context, timeout, every time.Duration, fn func() error) error {
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
