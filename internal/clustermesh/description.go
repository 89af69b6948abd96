package clustermesh

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Description is what a cluster publishes of itself, under [storekeys.ClusterConfigPrefix] in
// its store.
type Description struct {
	ID           uint32       `json:"id,omitempty"`
	Capabilities Capabilities `json:"capabilities"`
}

// Capabilities is how a cluster's store is to be read.
type Capabilities struct {
	// SyncedCanaries: keys under [storekeys.SyncedPrefix] show when a kind of state is complete.
	SyncedCanaries bool `json:"syncedCanaries,omitempty"`
	// Cached: the store is a mirror, with state under [storekeys.CachePrefix].
	Cached               bool   `json:"cached,omitempty"`
	MaxConnectedClusters uint32 `json:"maxConnectedClusters,omitempty"`
}

// maxDescription bounds the value that is read.
const maxDescription = 64 << 10

// ParseDescription reads a description. Fields that are not known are left alone: newer writers may
// have more.
func ParseDescription(value []byte) (Description, error) {
	if len(value) > maxDescription {
		return Description{}, fmt.Errorf("a description of %d bytes is larger than %d", len(value), maxDescription)
	}
	var d Description
	if err := json.NewDecoder(bytes.NewReader(value)).Decode(&d); err != nil {
		return Description{}, fmt.Errorf("the cluster's description cannot be read: %w", err)
	}
	return d, nil
}

// CheckOwner returns an error if another cluster uses the store, too: if it contains a description
// of a cluster other than the given one. Nothing shows which of several is right: the oldest may be
// a leftover of a cluster that is gone, or come from a restored backup. Descriptions of clusters
// that are only mirrored there do not count.
func CheckOwner(ctx context.Context, store kvstore.Backend, cluster string) error {
	prefix := storekeys.ClusterConfigPrefix + "/"
	list, err := store.List(ctx, prefix)
	if err != nil {
		return fmt.Errorf("list of the clusters that the store describes: %w", err)
	}
	for _, kv := range list.Pairs {
		if d, err := ParseDescription(kv.Value); err != nil || d.Capabilities.Cached {
			continue
		}
		if owner := strings.TrimPrefix(kv.Key, prefix); owner != cluster {
			return fmt.Errorf("the key-value store is that of cluster %q, not of %q alone: give this cluster a store of its own (--kvstore-opt), or delete %s if that cluster is gone",
				owner, cluster, kv.Key)
		}
	}
	return nil
}

// nameForm is that of a cluster's name; at most maxName characters.
var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

const maxName = 32

// Kinds are the kinds of state that a cluster shares, by what is behind [storekeys.StatePrefix] or
// [storekeys.CachePrefix].
const (
	kindIdentities = "identities/v1"
	kindAddresses  = "ip/v1"
	kindNodes      = "nodes/v1"
	kindServices   = "services/v1"
)

// layout is where a cluster's state is in its store.
type layout struct {
	cluster string
	cached  bool
}

func (l layout) base(kind string) string {
	if l.cached {
		return kvstore.JoinKey(storekeys.CachePrefix, kind)
	}
	return kvstore.JoinKey(storekeys.StatePrefix, kind)
}

// prefix is above the keys of a kind, with a slash at its end.
func (l layout) prefix(kind string) string {
	switch {
	case kind == kindIdentities && l.cached:
		return kvstore.JoinKey(l.base(kind), l.cluster, "id") + "/"
	case kind == kindIdentities:
		return kvstore.JoinKey(l.base(kind), "id") + "/"
	case kind == kindAddresses && !l.cached:
		return kvstore.JoinKey(l.base(kind), storekeys.DefaultAddressSpace) + "/"
	}
	return kvstore.JoinKey(l.base(kind), l.cluster) + "/"
}

// canary is the key that shows that a kind is complete, canaries the prefix of all of them.
func (l layout) canary(kind string) string {
	return kvstore.JoinKey(storekeys.SyncedPrefix, l.cluster, l.base(kind))
}
func (l layout) canaries() string { return kvstore.JoinKey(storekeys.SyncedPrefix, l.cluster) + "/" }
