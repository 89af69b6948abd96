package kube

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/pkg/retry"
)

// reaper collects every child of a first process: those it started itself, and those that were left
// to it. Only the reaper waits for children, because a wait for any child takes those of others.
type reaper struct {
	mu      sync.Mutex
	waiters map[int]chan syscall.WaitStatus
}

// newReaper starts collecting, for as long as the process lives.
func newReaper() *reaper {
	r := &reaper{waiters: map[int]chan syscall.WaitStatus{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			r.collect()
		}
	}()
	return r
}

func (r *reaper) collect() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r.mu.Lock()
		if w := r.waiters[pid]; w != nil {
			w <- status
			delete(r.waiters, pid)
		}
		r.mu.Unlock()
	}
}

// start runs a program with its output in a log of its name. The channel gets its status.
func (r *reaper) start(argv []string) (int, <-chan syscall.WaitStatus, error) {
	log, err := os.OpenFile(filepath.Join("/var/log", filepath.Base(argv[0])+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, nil, err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	w := make(chan syscall.WaitStatus, 1)
	r.mu.Lock() // until the child is known: it may end at once
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	r.waiters[pid] = w
	return pid, w, nil
}

// run runs a program to its end and returns its exit code, or -1 if a signal ended it. When ctx
// ends it is killed.
func (r *reaper) run(ctx context.Context, argv []string) (int, error) {
	pid, w, err := r.start(argv)
	if err != nil {
		return 0, err
	}
	select {
	case status := <-w:
		return status.ExitStatus(), nil
	case <-ctx.Done():
		_ = unix.Kill(pid, unix.SIGKILL)
		<-w
		return 0, ctx.Err()
	}
}

// keep runs a program and starts it again when it ends, until ctx ends. It fails only if the
// program can't be started.
func (r *reaper) keep(ctx context.Context, argv []string) error {
	for {
		began := time.Now()
		code, err := r.run(ctx, argv)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Printf("%s ended after %s with code %d: starting it again\n", strings.Join(argv, " "), time.Since(began).Round(time.Millisecond), code)
		if !retry.Sleep(ctx, time.Second) {
			return nil
		}
	}
}
