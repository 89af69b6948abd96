package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/hawser-net/hawser/pkg/retry"
)

func parseVersion(raw []byte) (string, error) {
	var v version.Info
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", fmt.Errorf("the API server's version: %w", err)
	}
	return v.GitVersion, nil
}

// Serves reports which of the kinds the server does not serve, as "resource.version.group". A
// server that does not answer is an error.
func (c *Client) Serves(ctx context.Context, kinds ...schema.GroupVersionResource) (missing []string, err error) {
	served := map[schema.GroupVersion][]string{}
	for _, k := range kinds {
		gv := k.GroupVersion()
		if _, asked := served[gv]; !asked {
			list := &metav1.APIResourceList{}
			rctx, cancel := context.WithTimeout(ctx, RequestTimeout)
			err := c.Urgent.Discovery().RESTClient().Get().AbsPath("/apis", gv.Group, gv.Version).Do(rctx).Into(list)
			cancel()
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("ask the API server at %s for the kinds of %s: %w", c.Host(), gv, err)
			}
			served[gv] = []string{}
			for _, r := range list.APIResources {
				served[gv] = append(served[gv], r.Name)
			}
		}
		if !slices.Contains(served[gv], k.Resource) {
			missing = append(missing, k.Resource+"."+gv.Version+"."+gv.Group)
		}
	}
	return missing, nil
}

// kindsPoll is how often the server is asked for kinds that are missing, kindsRemind how often the
// log says which.
const (
	kindsPoll   = time.Second
	kindsRemind = 15 * time.Second
)

// WaitForKinds returns when the server serves all kinds. A kind that is still missing when the
// server has answered for longer than timeout is an error that says which; so is the end of ctx. A
// server that does not answer is waited for: an agent that starts while it is away has work to go
// on with.
func (c *Client) WaitForKinds(ctx context.Context, timeout time.Duration, log *slog.Logger, kinds ...schema.GroupVersionResource) error {
	var (
		last        string
		said, first time.Time
	)
	for {
		missing, err := c.Serves(ctx, kinds...)
		if err == nil && len(missing) == 0 {
			if last != "" {
				log.Info("Kubernetes has everything that is needed")
			}
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		now := ""
		if err != nil {
			now, first = err.Error(), time.Time{}
		} else {
			if first.IsZero() {
				first = time.Now()
			}
			now = "these custom resources are not defined: " + strings.Join(missing, ", ") + "; the operator defines them: does it run?"
			if time.Since(first) >= timeout {
				return fmt.Errorf("%s (waited for %s, see --crd-wait-timeout)", now, timeout)
			}
		}
		if now != last || time.Since(said) > kindsRemind {
			log.Warn("waiting for Kubernetes", "reason", now)
			last, said = now, time.Now()
		}
		if !retry.Sleep(ctx, kindsPoll) {
			return context.Cause(ctx)
		}
	}
}
