package endpointslices

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/hawser-net/hawser/api/v2alpha1"
)

// wipeRetry is the pause between two tries to delete everything.
const wipeRetry = 10 * time.Second

// setupWipe adds the deletion of all slices to m, once: they are no longer maintained, and a reader
// would use stale data.
func setupWipe(m manager.Manager, log *slog.Logger) error {
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		_ = wait.PollUntilContextCancel(ctx, wipeRetry, true, func(ctx context.Context) (bool, error) {
			err := wipe(ctx, m.GetClient(), m.GetAPIReader(), log)
			if err != nil && ctx.Err() == nil {
				log.Warn("cannot delete the CiliumEndpointSlices, which no component maintains any more; trying again", "error", err)
			}
			return err == nil, nil
		})
		return nil
	}))
}

func wipe(ctx context.Context, c client.Client, live client.Reader, log *slog.Logger) error {
	var some v2alpha1.CiliumEndpointSliceList
	if err := live.List(ctx, &some, client.Limit(1)); err != nil {
		return fmt.Errorf("list of CiliumEndpointSlices: %w", err)
	}
	if len(some.Items) == 0 {
		return nil
	}
	if err := c.DeleteAllOf(ctx, &v2alpha1.CiliumEndpointSlice{}); err != nil {
		return fmt.Errorf("deletion of all CiliumEndpointSlices: %w", err)
	}
	log.Info("deleted all CiliumEndpointSlices: --" + EnableFlag + " is off")
	return nil
}
