package kube

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hawser-net/hawser/internal/k8s"
)

// EachPage reads a list of the server itself by [k8s.EachPage], each page into a list of its own
// that empty makes.
func EachPage[L client.ObjectList](ctx context.Context, live client.Reader, empty func() L, begin func(), page func(L) error, more ...client.ListOption) error {
	return k8s.EachPage(ctx, func(ctx context.Context, o metav1.ListOptions) (L, error) {
		l := empty()
		return l, live.List(ctx, l, append(slices.Clip(more), client.Limit(o.Limit), client.Continue(o.Continue))...)
	}, begin, page)
}
