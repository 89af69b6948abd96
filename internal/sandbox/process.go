package sandbox

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

// process remembers a process by its number and the moment it started (in clock ticks since boot),
// because numbers are used again.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// alive reports whether the process still runs; a zombie does not.
func (p process) alive() bool {
	start, state, err := readStat(p.PID)
	return err == nil && p.PID > 0 && start == p.Start && state != 'Z' && state != 'X'
}

// waitEnded waits until nothing of a process that was killed is left. Its first thread is a zombie
// before the others have given up what they hold, locks among it.
func (p process) waitEnded(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		_, _ = unix.Wait4(p.PID, nil, unix.WNOHANG, nil) // if it is a child of ours
		start, _, err := readStat(p.PID)
		tasks, taskErr := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
		if err != nil || start != p.Start || (!p.alive() && taskErr == nil && len(tasks) <= 1) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not end", p.PID)
		}
		time.Sleep(5 * time.Millisecond) // there is no notice for the end of somebody else's child
	}
}

// readStat reads the start time and the state of a process from /proc/PID/stat (see proc(5)). The
// name in it may contain anything, so fields are counted from the last parenthesis.
func readStat(pid int) (start uint64, state byte, err error) {
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

// daemon describes a process that outlives the command that starts it.
type daemon struct {
	namespace string // path
	argv      []string
	env       []string // added to the environment
	log       string   // file to append its output to
	// ready makes start wait until the process closes its descriptor 3; a process that ends before
	// writing to it has failed. Programs that know nothing of this have it false.
	ready   bool
	timeout time.Duration
}

func (d daemon) start() (process, error) {
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return process{}, err
	}
	defer log.Close()
	cmd := exec.Command(d.argv[0], d.argv[1:]...)
	cmd.Env = append(os.Environ(), d.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	// A session of its own: a Ctrl-C meant for this command must not end the sandbox.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var r, w *os.File
	if d.ready {
		if r, w, err = os.Pipe(); err != nil {
			return process{}, err
		}
		defer r.Close()
		cmd.ExtraFiles = []*os.File{w}
	}
	err = inNamespace(d.namespace, cmd.Start)
	if w != nil {
		_ = w.Close()
	}
	if err != nil {
		return process{}, fmt.Errorf("start %s: %w", d.argv[0], err)
	}
	p := process{PID: cmd.Process.Pid}
	p.Start, _, err = readStat(p.PID)
	// The process is found again by its number; it is nobody's child once this command has ended.
	_ = cmd.Process.Release()
	if err != nil {
		return p, fmt.Errorf("%s ended at once: %s", d.argv[0], lastLines(d.log, 3))
	}
	if d.ready {
		_ = r.SetReadDeadline(time.Now().Add(d.timeout))
		said, err := io.ReadAll(r)
		if err != nil || len(said) == 0 {
			return p, fmt.Errorf("%s did not start: %s", strings.Join(d.argv, " "), lastLines(d.log, 3))
		}
	}
	return p, nil
}

// signalReady tells the process that waits in daemon.start that this one is ready, if it was asked to.
func signalReady(fd int) error {
	if fd <= 0 {
		return nil
	}
	f := os.NewFile(uintptr(fd), "ready")
	_, err := f.Write([]byte("ready\n"))
	return errors.Join(err, f.Close())
}

// lastLines returns the end of a log for an error message.
func lastLines(file string, n int) string {
	data, err := os.ReadFile(file)
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return "its log is empty (" + file + ")"
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n  ") + "\n  (log: " + file + ")"
}

// processesIn lists the processes whose main thread is in one of the namespaces.
func processesIn(namespaces map[inode]bool) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		id, err := namespaceID(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil || !namespaces[id] {
			continue // gone, a zombie, or not ours
		}
		start, state, err := readStat(pid)
		if err == nil && state != 'Z' {
			out = append(out, process{PID: pid, Start: start})
		}
	}
	return out, nil
}

// send signals the process if it is still the same one. The descriptor
// keeps the number from being used again in between.
func (p process) send(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		if err == unix.ESRCH {
			return nil
		}
		return fmt.Errorf("process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// endAll ends every process in the namespaces: politely, and after a while with SIGKILL. It returns
// when none is left.
func endAll(namespaces map[inode]bool, polite time.Duration) (ended int, err error) {
	if len(namespaces) == 0 {
		return 0, nil
	}
	seen := map[process]unix.Signal{}
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
				if err := p.send(sig); err != nil {
					return len(seen), err
				}
				seen[p] = sig
			}
		}
		if time.Since(deadline) > 10*time.Second {
			return len(seen), fmt.Errorf("%d processes of the sandbox do not end, the first is %d", len(procs), procs[0].PID)
		}
		time.Sleep(5 * time.Millisecond) // there is no notice for the end of somebody else's child
	}
}
