package endpoints

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
)

// selectorRetry is the pause before a server that does not answer is asked again.
const selectorRetry = time.Second

// ownSelector returns what narrows CiliumEndpoints to this node's, for an agent that learns of
// others' pods from slices: of all objects, it would be sent every change of every pod for nothing.
// It is empty if the server cannot select them, because the definition is older than that or
// somebody else's: then all of them are heard. It waits for a server that is away, until ctx ends.
func (e *Endpoints) ownSelector(ctx context.Context) string {
	selector := "status.networking.node=" + e.cfg.Hosts[0].String()
	source := k8s.Kind(e.client, v2.ResourceEndpoints, "")
	for {
		rctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
		_, err := source.List(rctx, metav1.ListOptions{FieldSelector: selector, Limit: 1})
		cancel()
		switch {
		case err == nil:
			return selector
		case apierrors.IsBadRequest(err):
			e.cfg.Log.Info("the definition of CiliumEndpoints does not let this node ask for its own only: it hears of all of them", "error", err)
			return ""
		}
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(selectorRetry):
		}
	}
}
