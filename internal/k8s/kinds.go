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
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/pkg/retry"
)

func parseVersion(raw []byte) (string, error) {
	var v version.Info
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", fmt.Errorf("the API server's version: %w", err)
	}
	return v.GitVersion, nil
}

// Serves reports which of the kinds the server does not serve; see [Unserved].
func (c *Client) Serves(ctx context.Context, kinds ...schema.GroupVersionResource) (missing []string, err error) {
	missing, err = Unserved(ctx, c.Urgent.Discovery().RESTClient(), kinds...)
	if err != nil {
		return nil, fmt.Errorf("ask the API server at %s for the kinds that it serves: %w", c.Host(), err)
	}
	return missing, nil
}

// Unserved reports which of the kinds the server does not serve, as "resource.version.group". A
// server that does not answer is an error, and so is one that is not ready: while it starts, it
// answers for custom resources before it has read their definitions. Whatever depends on whether a
// kind is there asks here.
func Unserved(ctx context.Context, server rest.Interface, kinds ...schema.GroupVersionResource) (missing []string, err error) {
	missing, err = unlisted(ctx, server, kinds)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	rctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	if err := server.Get().AbsPath("/readyz").MaxRetries(0).Do(rctx).Error(); err != nil {
		return nil, fmt.Errorf("%s may be served once the server is ready: %w", strings.Join(missing, ", "), err)
	}
	// The first answer may be from before it was ready.
	return unlisted(ctx, server, kinds)
}

// unlisted returns those of the kinds that the server does not list now.
func unlisted(ctx context.Context, server rest.Interface, kinds []schema.GroupVersionResource) (missing []string, err error) {
	served := map[schema.GroupVersion][]string{}
	for _, k := range kinds {
		gv := k.GroupVersion()
		if _, asked := served[gv]; !asked {
			list := &metav1.APIResourceList{}
			rctx, cancel := context.WithTimeout(ctx, RequestTimeout)
			err := server.Get().AbsPath("/apis", gv.Group, gv.Version).Do(rctx).Into(list)
			cancel()
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("kinds of %s: %w", gv, err)
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
// log names them.
const (
	kindsPoll   = time.Second
	kindsRemind = 15 * time.Second
)

// WaitForKinds returns when the server serves all kinds. A kind that is still missing when the
// server has answered for longer than timeout is an error that names it; so is the end of ctx. A
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
