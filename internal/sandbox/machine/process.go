package machine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process remembers a process by its number and the moment it started (in clock ticks since boot),
// because numbers are used again.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Alive reports whether the process still runs; a zombie does not. Of one whose first thread is a
// zombie beside others, it waits, briefly, for what becomes of it: one of these may be about to
// become the first, by execve, or all of them are ending.
func (p Process) Alive() bool {
	ended := 0 // two files speak of two moments: that nothing is left must be seen repeatedly
	for range 500 {
		start, state, err := ReadStat(p.PID)
		if errors.Is(err, os.ErrNotExist) || p.PID <= 0 || err == nil && start != p.Start {
			return false
		}
		if err == nil && state != 'Z' && state != 'X' {
			return true
		}
		if tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID)); err != nil || len(tasks) <= 1 {
			if ended++; ended == 10 {
				return false
			}
			continue
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// WaitEnded waits until nothing of a process that was killed is left. Its first thread is a zombie
// before the others have given up what they hold, locks among it.
func (p Process) WaitEnded(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		_, _ = unix.Wait4(p.PID, nil, unix.WNOHANG, nil) // if it is a child of ours
		start, _, err := ReadStat(p.PID)
		tasks, taskErr := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
		if err != nil || start != p.Start || (!p.Alive() && taskErr == nil && len(tasks) <= 1) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not end", p.PID)
		}
		time.Sleep(5 * time.Millisecond) // there is no notice for the end of another process's child
	}
}

// ReadStat reads the start time and the state of a process from /proc/PID/stat (see proc(5)). The
// name in it may contain anything, so fields are counted from the last parenthesis.
func ReadStat(pid int) (start uint64, state byte, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	i := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[i+1:]))
	const startField = 22 - 3 // field 22; the first one after the name is field 3
	if i < 0 || len(fields) <= startField {
		return 0, 0, fmt.Errorf("process %d: unexpected stat", pid)
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	return start, fields[0][0], err
}

// Daemon describes a process that outlives the command that starts it.
type Daemon struct {
	Namespace string // path
	Argv      []string
	Env       []string // added to the environment
	Log       string   // file to append its output to
	// Ready makes Start wait until the process closes its descriptor 3; a process that ends before
	// writing to it has failed. Programs that know nothing of this have it false.
	Ready   bool
	Timeout time.Duration
	// Files are further descriptors of the process, from 4 on if Ready is set and from 3 on
	// otherwise. Start leaves them open.
	Files []*os.File
	// Cloneflags are the namespaces that the process gets new ones of, as CLONE_NEWPID.
	Cloneflags uintptr
}

// Start starts the process, and waits until it is ready if Ready is set. The process outlives the
// caller and then has no parent here.
func (d Daemon) Start() (Process, error) {
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return Process{}, err
	}
	defer log.Close()
	cmd := exec.Command(d.Argv[0], d.Argv[1:]...)
	cmd.Env = append(os.Environ(), d.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	// A session of its own: a Ctrl-C meant for this command must not end the sandbox.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: d.Cloneflags}
	var r, w *os.File
	if d.Ready {
		if r, w, err = os.Pipe(); err != nil {
			return Process{}, err
		}
		defer r.Close()
		cmd.ExtraFiles = []*os.File{w}
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, d.Files...)
	err = InNamespace(d.Namespace, cmd.Start)
	if w != nil {
		_ = w.Close()
	}
	if err != nil {
		return Process{}, fmt.Errorf("start %s: %w", d.Argv[0], err)
	}
	p := Process{PID: cmd.Process.Pid}
	p.Start, _, err = ReadStat(p.PID)
	// The process is found again by its PID; it has no parent here once this command has ended.
	_ = cmd.Process.Release()
	if err != nil {
		return p, fmt.Errorf("%s ended at once: %s", d.Argv[0], LastLines(d.Log, 3))
	}
	if d.Ready {
		_ = r.SetReadDeadline(time.Now().Add(d.Timeout))
		said, err := io.ReadAll(r)
		if err != nil || len(said) == 0 {
			return p, fmt.Errorf("%s did not start: %s", strings.Join(d.Argv, " "), LastLines(d.Log, 3))
		}
	}
	return p, nil
}

// SignalReady notifies the process that waits in Daemon.Start that this one is ready, if it was
// asked to.
func SignalReady(fd int) error {
	if fd <= 0 {
		return nil
	}
	f := os.NewFile(uintptr(fd), "ready")
	_, err := f.Write([]byte("ready\n"))
	return errors.Join(err, f.Close())
}

// LastLines returns the end of a log for an error message.
func LastLines(file string, n int) string {
	data, err := os.ReadFile(file)
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return "its log is empty (" + file + ")"
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n  ") + "\n  (log: " + file + ")"
}

// processesIn lists the processes whose main thread is in one of the namespaces.
func processesIn(namespaces map[Inode]bool) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		id, err := NamespaceID(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil || !namespaces[id] {
			continue // gone, a zombie, or not ours
		}
		start, state, err := ReadStat(pid)
		if err == nil && state != 'Z' {
			out = append(out, Process{PID: pid, Start: start})
		}
	}
	return out, nil
}

// Send signals the process if it is still the same one. The descriptor
// keeps the number from being used again in between.
func (p Process) Send(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		if err == unix.ESRCH {
			return nil
		}
		return fmt.Errorf("process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// EndAll ends every process in the namespaces: politely, and after a while with SIGKILL. It returns
// when none is left.
func EndAll(namespaces map[Inode]bool, polite time.Duration) (ended int, err error) {
	if len(namespaces) == 0 {
		return 0, nil
	}
	seen := map[Process]unix.Signal{}
	deadline := time.Now().Add(polite)
	for {
		procs, err := processesIn(namespaces)
		if err != nil {
			return len(seen), err
		}
		// A process started by this very process would stay behind as a zombie.
		for p := range seen {
			_, _ = unix.Wait4(p.PID, nil, unix.WNOHANG, nil)
		}
		if len(procs) == 0 {
			return len(seen), nil
		}
		sig := unix.SIGTERM
		if time.Now().After(deadline) {
			sig = unix.SIGKILL
		}
		for _, p := range procs {
			if seen[p] != sig {
				if err := p.Send(sig); err != nil {
					return len(seen), err
				}
				seen[p] = sig
			}
		}
		if time.Since(deadline) > 10*time.Second {
			return len(seen), fmt.Errorf("%d processes of the sandbox do not end, the first is %d", len(procs), procs[0].PID)
		}
		time.Sleep(5 * time.Millisecond) // there is no notice for the end of another process's child
	}
}
