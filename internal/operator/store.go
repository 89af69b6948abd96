package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-net/hawser/internal/clustermesh"
	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// writeTimeout bounds one write of the heartbeat and of the description.
const writeTimeout = 25 * time.Second

// ownerInterval is the longest pause between two questions whether the store is this cluster's.
const ownerInterval = time.Minute

// owns returns an error unless the key-value store is this cluster's alone. While it does, the
// operator makes and removes no state there.
func (o *Operator) owns(ctx context.Context, store kvstore.Backend) error {
	return clustermesh.CheckOwner(ctx, store, o.cfg.ClusterName)
}

// awaitStore waits until the key-value store is this cluster's alone, or ctx ends.
func (o *Operator) awaitStore(ctx context.Context, store kvstore.Backend) {
	ask, admitted := context.WithCancel(ctx)
	defer admitted()
	_ = rounds.Every(ask, ownerInterval, nil, func(ctx context.Context) error {
		err := o.owns(ctx, store)
		if err == nil {
			admitted()
		} else if ctx.Err() == nil {
			o.log.Warn("no identity is made in the key-value store, trying again", "part", "identities", "error", err)
		}
		return err
	})
}

// heartbeat writes the time, by which nodes see that an operator maintains the store.
func (o *Operator) heartbeat(ctx context.Context, store kvstore.Backend) error {
	lost, stop := kvstore.LostLease(store, storekeys.HeartbeatKey)
	defer stop()
	return rounds.Every(ctx, o.cfg.HeartbeatInterval, lost, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		err := kvstore.Put(ctx, store, storekeys.HeartbeatKey, []byte(time.Now().UTC().Format(time.RFC3339)), kvstore.Leased)
		if err != nil && !errors.Is(err, context.Canceled) {
			o.log.Warn("cannot write the heartbeat", "key", storekeys.HeartbeatKey, "error", err)
		}
		if err == nil {
			o.metrics.beat.SetToCurrentTime()
		}
		return err
	})
}

// description is the value of the cluster's key, as other clusters read it.
func (o *Operator) description() ([]byte, error) {
	return json.Marshal(clustermesh.Description{ID: o.cfg.ClusterID, Capabilities: clustermesh.Capabilities{
		MaxConnectedClusters: o.cfg.MaxConnectedClusters, SyncedCanaries: o.cfg.Kubernetes && o.cfg.mesh().Whole(),
	}})
}

// clusterConfig keeps the cluster's description in the store. It is rewritten periodically, and not
// only when it is missing: so it is always on the lease of a running operator.
func (o *Operator) clusterConfig(ctx context.Context, store kvstore.Backend) error {
	key := kvstore.JoinKey(storekeys.ClusterConfigPrefix, o.cfg.ClusterName)
	want, err := o.description()
	if err != nil {
		return fmt.Errorf("encoding the cluster's description: %w", err)
	}
	lost, stop := kvstore.LostLease(store, key)
	defer stop()
	return rounds.Every(ctx, o.cfg.ClusterConfigInterval, lost, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		have, err := store.Get(ctx, key)
		if errors.Is(err, kvstore.ErrNotFound) {
			err = nil
		}
		if other, perr := clustermesh.ParseDescription(have.Value); err == nil && len(have.Value) > 0 && perr == nil && other.ID != o.cfg.ClusterID {
			o.log.Warn("the store describes this cluster with another ID; if another operator goes on to do so, they are set up differently",
				"cluster", o.cfg.ClusterName, "was", other.ID, "is", o.cfg.ClusterID)
		}
		if err == nil {
			err = o.owns(ctx, store)
		}
		if err == nil {
			err = kvstore.Put(ctx, store, key, want, kvstore.Leased)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			o.log.Warn("cannot write the cluster's description", "key", key, "error", err)
		}
		return err
	})
}
