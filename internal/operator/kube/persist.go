package kube

import (
	"context"
	"errors"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-net/hawser/pkg/retry"
)

// The pauses of Persist: the first, and the longest.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
)

// Persist calls f, which sends a request, until it succeeds, ctx ends, or the server refuses the
// request for good. Each failure is logged with what. A leader needs it for what it does once, when
// it begins: the failure of that ends the process, and the next one begins with the same request.
func Persist(ctx context.Context, log *slog.Logger, what string, f func() error) error {
	pause := firstPause
	for {
		err := f()
		if err == nil || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsBadRequest(err) {
			return err
		}
		// Another client was faster: there is nothing to wait for.
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			log.Warn(what, "error", err)
			pause = min(2*pause, longestPause)
		}
		if !retry.Sleep(ctx, pause) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
