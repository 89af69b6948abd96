package endpoints

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
)

// selectorRetry is the pause before a server that does not answer is asked again.
const selectorRetry = time.Second

// ownSelector returns what narrows CiliumEndpoints to this node's, for an agent that reads others'
// pods from slices: a watch of all objects would send it every change of every pod for nothing. It
// is empty if the server cannot select them, because the definition is older or of another program:
// then all are watched. It waits for an unavailable server until ctx ends.
func (e *Endpoints) ownSelector(ctx context.Context) string {
	selector := "status.networking.node=" + e.cfg.Hosts[0].String()
	source := k8s.Kind(e.limited.objects, v2.ResourceEndpoints, "")
	err := wait.PollUntilContextCancel(ctx, selectorRetry, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
		defer cancel()
		_, err := source.List(ctx, metav1.ListOptions{FieldSelector: selector, Limit: 1})
		if apierrors.IsBadRequest(err) {
			e.cfg.Log.Info("the definition of CiliumEndpoints does not let this node select its own: it watches all of them", "error", err)
			return false, err
		}
		return err == nil, nil
	})
	if err != nil {
		return ""
	}
	return selector
}
