package identities

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// SetKeys has only labels with these keys make identities, and those that always count. From then
// on pods get their identities by them, and endpoints are corrected. If Control.Await was given,
// SetKeys must be called before that is over.
func (c *Controller) SetKeys(keys labels.Keys) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index.rules.relevant().Equal(keys) {
		return
	}
	c.index.rules.keys.Store(&keys)
	for k, p := range c.index.pods {
		c.index.place(k, p)
	}
	c.flush()
}

// LabelSets returns how many identities pods need, and how many they would need if all labels
// counted. What has an ID by rule is in neither.
func (c *Controller) LabelSets() (now, full int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.index.sets {
		if len(s.pods) > 0 && s.fixedID == 0 {
			now++
		}
	}
	return now, len(c.index.full)
}

// Versions are the highest resource versions of objects of these kinds.
type Versions struct{ Endpoints, Slices, Identities uint64 }

// Applied reads from the server whether an identity made by the present keys is in use for every
// pod: whether no CiliumEndpoint and no CiliumEndpointSlice names another one. why names one that
// does, and is empty if there is none. A process that has observed the returned versions has
// observed all of that.
func (c *Controller) Applied(ctx context.Context) (v Versions, why string, err error) {
	c.mu.Lock()
	if !c.running {
		why = "the operator does not know the cluster yet"
	}
	c.mu.Unlock()
	if why != "" {
		return v, why, nil
	}
	check := func(k key, id int64) {
		if why == "" && !c.right(k, identity.ID(id)) {
			why = fmt.Sprintf("%s is still known by identity %d", k, id)
		}
	}
	err = eachPage(ctx, c.live, pageSize, func() client.ObjectList { return &v2.CiliumEndpointList{} }, nil, func(page client.ObjectList) {
		for _, e := range page.(*v2.CiliumEndpointList).Items {
			v.Endpoints = max(v.Endpoints, version(e.ResourceVersion))
			if e.Status.Identity != nil {
				check(key{Namespace: e.Namespace, Name: e.Name}, e.Status.Identity.ID)
			}
		}
	})
	if err != nil {
		return v, why, fmt.Errorf("list of CiliumEndpoints: %w", err)
	}
	err = eachPage(ctx, c.live, pageSize, func() client.ObjectList { return &v2alpha1.CiliumEndpointSliceList{} }, nil, func(page client.ObjectList) {
		for _, s := range page.(*v2alpha1.CiliumEndpointSliceList).Items {
			v.Slices = max(v.Slices, version(s.ResourceVersion))
			for _, e := range s.Endpoints {
				check(key{Namespace: s.Namespace, Name: e.Name}, e.IdentityID)
			}
		}
	})
	if err != nil {
		return v, why, fmt.Errorf("list of CiliumEndpointSlices: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.index.ids { // what was found right is among these
		v.Identities = max(v.Identities, version(n.rv))
	}
	return v, why, nil
}

// right reports whether an ID is the one that a pod must have. Endpoints without a pod are not
// checked.
func (c *Controller) right(k key, id identity.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.index.pods[k]
	if p == nil || p.set == nil || id == identity.Init || id == 0 {
		return true
	}
	if p.set.fixedID != 0 {
		return id == p.set.fixedID
	}
	n := c.index.ids[id]
	return n != nil && !n.quarantined && n.nowText == p.set.text
}
