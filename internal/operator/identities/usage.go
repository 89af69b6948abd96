package identities

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
)

// pageSize is how many objects one request reads from the server itself.
const pageSize = 500

// recheck is how long what the server itself said of the users of identities counts. A round that deletes many takes longer.
const recheck = time.Minute

// cached returns what the caches say of the use of numbers.
func (c *collector) cached(ctx context.Context) (func(identity.ID) bool, error) {
	if c.cfg.Pods != nil {
		used, ok := c.cfg.Pods.InUse()
		if !ok {
			return nil, errEmpty
		}
		return used, nil
	}
	named, err := inUse(ctx, c.client, 0)
	return func(id identity.ID) bool { return named[int64(id)] }, err
}

// liveCheck asks the server itself who uses identities.
type liveCheck struct {
	*collector
	ctx   context.Context
	asked time.Time
	named map[int64]bool
	texts map[string]bool // labels of pods, if identities are made for them
}

// unused calls f if neither the server nor the caches, which may know more by now, show anybody who uses the number of o, or is to use what it stands for.
func (l *liveCheck) unused(o *v2.CiliumIdentity, text string, f func() (bool, error)) (bool, error) {
	number, ok := numberOf(o.Name, 1, ^identity.ID(0))
	if !ok {
		return false, nil
	}
	if l.named == nil || time.Since(l.asked) > recheck {
		if err := l.ask(); err != nil {
			return false, err
		}
	}
	switch {
	case l.named[int64(number)]:
		return false, nil
	case l.cfg.Pods == nil:
		return f()
	case l.texts[text] && !l.cfg.Pods.second(number):
		return false, nil
	}
	return l.cfg.Pods.hold(number, f)
}

// ask reads everything that uses identities.
func (l *liveCheck) ask() error {
	asked := time.Now()
	named, err := inUse(l.ctx, l.live, pageSize)
	if err != nil {
		return err
	}
	var texts map[string]bool
	if l.cfg.Pods != nil {
		if texts, err = wanted(l.ctx, l.live, l.cfg.Pods.book.rules); err != nil {
			return err
		}
	}
	l.asked, l.named, l.texts = asked, named, texts
	return nil
}

// inUse returns the numbers that endpoints and slices name. limit is the size of a page; 0 for everything at once, which a cache can do only.
func inUse(ctx context.Context, from client.Reader, limit int64) (map[int64]bool, error) {
	used := map[int64]bool{}
	err := eachPage(ctx, from, limit, func() client.ObjectList { return &v2.CiliumEndpointList{} }, func(page client.ObjectList) {
		for _, e := range page.(*v2.CiliumEndpointList).Items {
			if id := e.Status.Identity; id != nil {
				used[id.ID] = true
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of CiliumEndpoints: %w", err)
	}
	err = eachPage(ctx, from, limit, func() client.ObjectList { return &v2alpha1.CiliumEndpointSliceList{} }, func(page client.ObjectList) {
		for _, s := range page.(*v2alpha1.CiliumEndpointSliceList).Items {
			for _, e := range s.Endpoints {
				used[e.IdentityID] = true
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of CiliumEndpointSlices: %w", err)
	}
	return used, nil
}

// wanted returns the labels that pods are to have an identity for, as the server has them.
func wanted(ctx context.Context, from client.Reader, rules *Rules) (map[string]bool, error) {
	namespaces := map[string]map[string]string{}
	err := eachPage(ctx, from, pageSize, func() client.ObjectList { return &corev1.NamespaceList{} }, func(page client.ObjectList) {
		for _, ns := range page.(*corev1.NamespaceList).Items {
			namespaces[ns.Name] = ns.Labels
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of Namespaces: %w", err)
	}
	texts := map[string]bool{}
	err = eachPage(ctx, from, pageSize, func() client.ObjectList { return &corev1.PodList{} }, func(page client.ObjectList) {
		for i := range page.(*corev1.PodList).Items {
			p := &page.(*corev1.PodList).Items[i]
			if !counts(p) {
				continue
			}
			if t, err := rules.target(p, namespaces[p.Namespace]); err == nil {
				texts[t.text] = true
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of Pods: %w", err)
	}
	return texts, nil
}

// eachPage reads all objects page by page, each into a list of its own, and calls f for each page.
func eachPage(ctx context.Context, from client.Reader, limit int64, list func() client.ObjectList, f func(client.ObjectList)) error {
	opts := &client.ListOptions{Limit: limit}
	if limit == 0 { // from a cache, and only read
		uncopied := true
		opts.UnsafeDisableDeepCopy = &uncopied
	}
	for {
		page := list()
		if err := from.List(ctx, page, opts); err != nil {
			return err
		}
		f(page)
		opts.Continue = page.GetContinue()
		if limit == 0 || opts.Continue == "" {
			return nil
		}
	}
}
