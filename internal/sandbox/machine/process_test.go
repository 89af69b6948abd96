package machine

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// executions, if set, makes the test's program execute itself that often; threads makes it wait
// with so many.
const (
	executions = "HAWSER_TEST_EXECUTIONS"
	threads    = "HAWSER_TEST_THREADS"
)

func TestMain(m *testing.M) {
	if left, err := strconv.Atoi(os.Getenv(executions)); err == nil {
		if left > 0 {
			os.Setenv(executions, strconv.Itoa(left-1))
			err := OnThread(func() error { return unix.Exec("/proc/self/exe", os.Args, os.Environ()) })
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(left)
	}
	if n, err := strconv.Atoi(os.Getenv(threads)); err == nil {
		for range n {
			go func() { runtime.LockOSThread(); _ = unix.Pause() }()
		}
		fmt.Println()
		select {}
	}
	os.Exit(m.Run())
}

// TestAliveWhileExecuting: a process whose threads other than the first execute programs is alive
// all the time, though its first thread is a zombie for a moment each time.
func TestAliveWhileExecuting(t *testing.T) {
	t.Parallel()
	const often = 200
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", executions, often))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	start, _, err := ReadStat(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p := Process{PID: c.Process.Pid, Start: start}
	ended := make(chan error, 1)
	go func() {
		// Wait would collect it: that it is there as a zombie is what Alive must tell apart.
		ended <- unix.Waitid(unix.P_PID, p.PID, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}()
	for over := false; ; {
		alive := p.Alive()
		if over && alive {
			t.Fatal("it counted as ended, and went on")
		}
		over = !alive
		select {
		case err := <-ended:
			if err != nil || p.Alive() {
				t.Errorf("it has ended (%v), and is alive: %v", err, p.Alive())
			}
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// TestKilledIsNotAlive: a process with many threads that was killed does not count as alive, also
// while the last of them end.
func TestKilledIsNotAlive(t *testing.T) {
	t.Parallel()
	for range 20 {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), threads+"=100")
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		start, _, err := ReadStat(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		p := Process{PID: c.Process.Pid, Start: start}
		if !p.Alive() {
			t.Error("it has not ended, and is not alive")
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for state := byte(0); state != 'Z'; { // its first thread has ended
			if _, state, err = ReadStat(p.PID); err != nil {
				t.Fatal(err)
			}
		}
		if p.Alive() {
			t.Error("it was killed, and is alive")
		}
		_ = c.Wait() // killed
	}
}
