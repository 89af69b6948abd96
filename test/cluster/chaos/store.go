package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/pkg/retry"
	"github.com/hawser-net/hawser/test/cluster/invariant"
)

// storeOutage is how long the store is away.
const storeOutage = time.Minute

// storeDown takes the store of identities away, and meanwhile ends every agent, which then has what
// it wrote down.
func storeDown(ctx context.Context, d *day) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	restore := d.undoing(ctx, d.up)
	if err := info.Processes["store"].Send(unix.SIGKILL); err != nil {
		return err
	}
	if err := d.killOnNodes(ctx, "hawser-agent"); err != nil {
		return err
	}
	retry.Sleep(ctx, storeOutage)
	if err := restore(); err != nil {
		return err
	}
	began := time.Now()
	if err := errors.Join(invariant.AgentsAnswer(ctx, d.Lab, 3*time.Minute), invariant.Hold(ctx, d.Lab, 3*time.Minute)); err != nil {
		return err
	}
	d.note("all is in order %.1f s after the store is back", time.Since(began).Seconds())
	return nil
}
