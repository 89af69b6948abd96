package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/test/cluster/invariant"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// errNoIdentity says that there is no identity of an ID.
var errNoIdentity = errors.New("there is no such identity")

// inUse returns the identity of a random pod.
func (s *soak) inUse(ctx context.Context) (*v2.CiliumIdentity, error) {
	p := s.pod()
	all, err := invariant.Identities(ctx, s.Lab)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if invariant.IdentityLabels(&all[i]).Equal(p.Labels) {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("no identity has the labels of %s", p.Name())
}

// meaning returns the labels that an ID has where identities are kept, or errNoIdentity.
func (s *soak) meaning(ctx context.Context, number string) (map[string]string, error) {
	all, err := invariant.Identities(ctx, s.Lab)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Name == number {
			return all[i].SecurityLabels, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", errNoIdentity, number)
}

// setMeaning gives an ID that is there other labels, past all that look after it.
func (s *soak) setMeaning(ctx context.Context, number string, set map[string]string) error {
	if s.Lab.Store == nil {
		patch, err := json.Marshal(map[string]any{"security-labels": set})
		if err != nil {
			return err
		}
		err = s.Custom("PATCH", v2.ResourceIdentities).Name(number).SetHeader("Content-Type", string(types.MergePatchType)).Body(patch).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("%w: %w", errNoIdentity, err)
		}
		return err
	}
	parsed, err := identities.ParseSecurityLabels(set)
	if err != nil {
		return err
	}
	_, err = s.Lab.Store.Txn(ctx, kvstore.Txn{
		Then: []kvstore.Op{kvstore.PutOp(invariant.IdentityKey(number), []byte(s.Lab.Store.Layout().Encode(parsed.KVString())), kvstore.Permanent)},
	})
	return err
}

// dropNumber deletes an ID where identities are kept.
func (s *soak) dropNumber(ctx context.Context, number string) error {
	if s.Lab.Store == nil {
		return s.Custom("DELETE", v2.ResourceIdentities).Name(number).Do(ctx).Error()
	}
	_, err := s.Lab.Store.Txn(ctx, kvstore.Txn{Then: []kvstore.Op{kvstore.DeleteOp(invariant.IdentityKey(number))}})
	return err
}

// editIdentity gives an ID in use other labels by hand, and takes that back. It must change
// nothing.
func (s *soak) editIdentity(ctx context.Context) (change, error) {
	id, err := s.inUse(ctx)
	if err != nil {
		return change{}, err
	}
	edited := maps.Clone(id.SecurityLabels)
	edited["k8s:app"] = map[string]string{"x": "y", "y": "z", "z": "x"}[edited["k8s:app"]]
	return change{
		kind: "edit-identity", what: fmt.Sprintf("identity %s is edited by hand, and back", id.Name),
		make: func(ctx context.Context) error { return s.setMeaning(ctx, id.Name, edited) },
		undo: func(ctx context.Context) error {
			now, err := s.meaning(ctx, id.Name)
			if err == nil && maps.Equal(now, edited) {
				err = s.setMeaning(ctx, id.Name, id.SecurityLabels)
			}
			if errors.Is(err, errNoIdentity) {
				return nil // no pod needs it any more
			}
			return err
		},
	}, nil
}

// deleteIdentity removes an ID in use by hand. It must come back with its meaning.
func (s *soak) deleteIdentity(ctx context.Context) (change, error) {
	id, err := s.inUse(ctx)
	if err != nil {
		return change{}, err
	}
	return change{
		kind: "delete-identity", what: fmt.Sprintf("identity %s is deleted by hand", id.Name),
		make: func(ctx context.Context) error { return s.dropNumber(ctx, id.Name) },
		undo: func(ctx context.Context) error {
			return lab.Eventually(ctx, convergence, func(ctx context.Context) error {
				now, err := s.meaning(ctx, id.Name)
				if err == nil && !maps.Equal(now, id.SecurityLabels) {
					err = fmt.Errorf("identity %s came back as %v, was %v", id.Name, now, id.SecurityLabels)
				}
				return err
			})
		},
	}, nil
}
