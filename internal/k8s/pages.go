package k8s

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PageSize is how many objects one request for a page of a list reads.
const PageSize = 500

// EachPage reads a consistent list page by page, and calls page with each. A server keeps a
// snapshot for some minutes only: if it expires before the last page, the whole list is read again
// by one request, so that this cannot recur. begin is called before the first page, and again then:
// it must discard earlier pages. Pass nil if page may be called twice for an object, and for some
// that are gone. After an error of page no more is read.
func EachPage[L metav1.ListInterface](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), begin func(), page func(L) error) error {
	opts := metav1.ListOptions{Limit: PageSize}
	for {
		if opts.Continue == "" && begin != nil {
			begin()
		}
		l, err := list(ctx, opts)
		if opts.Continue != "" && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) {
			opts = metav1.ListOptions{}
			continue
		}
		if err != nil {
			return err
		}
		if err := page(l); err != nil {
			return err
		}
		if opts.Continue = l.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}
