package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/sandbox"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// copies are what is kept of the data of the store, and of Kubernetes' etcd, to put it back.
type copies struct {
	dir  string // "" before the first one
	kept bool   // of the store
}

func (c *copies) path(of string) string { return filepath.Join(c.dir, of) }

func (c *copies) remove() error {
	if c.dir == "" {
		return nil
	}
	return os.RemoveAll(c.dir)
}

// storeProcess is the store as it runs now.
func (s *soak) storeProcess() (p machine.Process, dir string, err error) {
	info, err := s.Info()
	if err != nil {
		return machine.Process{}, "", err
	}
	return info.Processes["store"], info.StoreDir, nil
}

// takeCopy keeps the data of the store as a power cut would leave it now.
func (s *soak) takeCopy(ctx context.Context) error {
	p, dir, err := s.storeProcess()
	if err != nil {
		return err
	}
	err = s.copyOf(ctx, p, dir, "store")
	s.copies.kept = err == nil
	return err
}

// copyOf keeps the data of a server, which stands still meanwhile.
func (s *soak) copyOf(ctx context.Context, p machine.Process, dir, name string) (err error) {
	if s.copies.dir == "" {
		if s.copies.dir, err = os.MkdirTemp("", "hawser-soak-"); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(s.copies.path(name)); err != nil {
		return err
	}
	if err := p.Send(unix.SIGSTOP); err != nil {
		return err
	}
	return errors.Join(copyDir(ctx, dir, s.copies.path(name)), p.Send(unix.SIGCONT))
}

// putCopyBack has the store go on from its copy.
func (s *soak) putCopyBack(ctx context.Context) error {
	p, dir, err := s.storeProcess()
	if err != nil {
		return err
	}
	if err := errors.Join(p.Send(unix.SIGKILL), p.WaitEnded(20*time.Second), os.RemoveAll(dir)); err != nil {
		return err
	}
	return errors.Join(copyDir(ctx, s.copies.path("store"), dir), s.storeUp(ctx))
}

// storeUp starts the store again and waits until it answers.
func (s *soak) storeUp(ctx context.Context) error {
	if err := s.Sandbox(ctx, "up", "--kubernetes", "--yes"); err != nil {
		return err
	}
	return lab.Eventually(ctx, time.Minute, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := s.Lab.Store.List(ctx, "cilium/.heartbeat")
		return err
	})
}

func copyDir(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// storeGone takes the store away, and may kill an agent meanwhile, which then has what it wrote
// down.
func (s *soak) storeGone(node string) disturbance {
	kill := s.rng.IntN(2) == 0
	what := "no store"
	if kill {
		what += ", and the agent of " + node + " is killed"
	}
	return disturbance{
		kind: "store-away", what: what, noStore: true, lasts: s.seconds(8, 20),
		begin: func(ctx context.Context) error {
			p, _, err := s.storeProcess()
			if err != nil {
				return err
			}
			if err := errors.Join(p.Send(unix.SIGKILL), p.WaitEnded(20*time.Second)); err != nil || !kill {
				return err
			}
			return s.signal(ctx, node, "KILL", "hawser-agent")
		},
		end: s.storeUp,
	}
}

// storeFrozen has the store stand still.
func (s *soak) storeFrozen() disturbance {
	lasts := s.seconds(3, 12)
	signal := func(sig unix.Signal) func(context.Context) error {
		return func(context.Context) error {
			p, _, err := s.storeProcess()
			return errors.Join(err, p.Send(sig))
		}
	}
	return disturbance{
		kind: "freeze-store", what: fmt.Sprintf("the store stands still for %s", lasts), noStore: true, lasts: lasts,
		begin: signal(unix.SIGSTOP), end: signal(unix.SIGCONT),
	}
}

// storeBack has the store forget what was written since a copy was made: since the step began, or
// since an earlier one.
func (s *soak) storeBack() disturbance {
	old := s.rng.IntN(2) == 0 && s.copies.kept
	what := "the store goes back to a copy of this step's beginning"
	if old {
		what = "the store goes back to an old copy"
	}
	return disturbance{
		kind: "store-back", what: what, lasts: s.seconds(3, 10),
		begin: func(ctx context.Context) error {
			if old {
				return nil
			}
			return s.takeCopy(ctx)
		},
		end: s.putCopyBack,
	}
}

// serverBack has Kubernetes forget what was written since the change was made: which endpoints and
// identities followed from it. That is as administrators put a backup back: revisions go on above
// those that had been given out.
func (s *soak) serverBack() disturbance {
	const name = "etcd"
	return disturbance{
		kind: "server-back", what: "Kubernetes goes back to a copy of just after the change", begin: nothing, lasts: s.seconds(2, 8),
		changed: func(ctx context.Context) error {
			info, err := s.Info()
			if err != nil {
				return err
			}
			return s.copyOf(ctx, info.Processes[name], info.EtcdDir, name)
		},
		end: func(ctx context.Context) error {
			info, err := s.Info()
			if err != nil {
				return err
			}
			reached, err := s.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			revision, err := strconv.ParseInt(reached.ResourceVersion, 10, 64)
			if err != nil {
				return err
			}
			for _, program := range []string{"kube-apiserver", name} {
				p := info.Processes[program]
				if err := errors.Join(p.Send(unix.SIGKILL), p.WaitEnded(20*time.Second)); err != nil {
					return err
				}
			}
			revision += 10_000 // more was written between the answer and the end
			err = errors.Join(os.RemoveAll(info.EtcdDir), copyDir(ctx, s.copies.path(name), info.EtcdDir),
				os.WriteFile(filepath.Join(info.EtcdDir, sandbox.RevisionFile), strconv.AppendInt(nil, revision, 10), 0o600))
			if err != nil {
				return err
			}
			return s.Sandbox(ctx, "up", "--kubernetes", "--yes")
		},
	}
}
