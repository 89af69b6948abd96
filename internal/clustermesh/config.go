package clustermesh

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/validate"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Config is what users set. Start from [Defaults].
type Config struct {
	// Dir has a file for each other cluster; empty for none.
	Dir string
	// SyncTimeout is how long a starting agent waits for other clusters before it forgets what only
	// they could still want.
	SyncTimeout time.Duration
}

// Defaults returns the configuration of an agent without options.
func Defaults() Config { return Config{SyncTimeout: time.Minute} }

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Dir, "clustermesh-config", c.Dir, "directory with a file for each other cluster, which has its name and the format of etcd's client; empty for none")
	fs.DurationVar(&c.SyncTimeout, "clustermesh-sync-timeout", c.SyncTimeout,
		"how long a starting agent waits for other clusters before it discards what it knew of them")
}

// Validate checks every option and joins all faults in one error. clusterID is this cluster's
// ID.
func (c *Config) Validate(clusterID uint32) error {
	var errs validate.Errors
	errs.If(c.Dir != "" && !filepath.IsAbs(c.Dir), "--clustermesh-config: %q is not an absolute path", c.Dir)
	errs.If(c.Dir != "" && clusterID == 0, "--clustermesh-config: a cluster that is connected to others needs an ID of its own: set --cluster-id")
	errs.If(c.SyncTimeout < 0, "--clustermesh-sync-timeout: %s is negative", c.SyncTimeout)
	return errs.Err()
}

// Sinks are the tables that other clusters fill, too.
type Sinks struct {
	Identities Identities
	Nodes      Nodes
	Addresses  Addresses
	// Services may be nil, where there are none.
	Services Services
}

// Identities takes identities of other clusters.
type Identities interface {
	SetIdentities(upserts map[identity.ID]labels.Set, deletes []identity.ID) error
}

// Nodes takes nodes of other clusters.
type Nodes interface {
	Observe(ctx context.Context, n node.Node) error
	// Forget is called with a node whose key is gone, which may come back soon; Dismiss of one
	// whose cluster is not followed any more.
	Forget(ctx context.Context, k node.Key) error
	Dismiss(ctx context.Context, k node.Key) error
}

// Addresses takes addresses of other clusters' pods, as claims of source [ipcache.ClusterMesh] that
// the cluster owns.
type Addresses interface {
	Upsert(p netip.Prefix, c ipcache.Claim) (revision uint64, err error)
	Delete(p netip.Prefix, source ipcache.Source, owner string) (revision uint64)
}

// Services takes services of other clusters.
type Services interface {
	SetShared(s service.Shared)
	DeleteShared(cluster string, n service.Name)
}

// Params is what a [Mesh] is made from besides the user's settings.
type Params struct {
	Config
	// Name and ID are this cluster's; MaxClusters is 255 or 511.
	Name        string
	ID          uint32
	MaxClusters uint32
	Sinks       Sinks
	// Poll is how often the directory is read, a second by default; Describe how often a cluster's
	// description is, 5 seconds until it is known, and ten times that afterwards.
	Poll, Describe time.Duration
	// Open connects to a cluster's store by its file.
	Open func(ctx context.Context, file string, log *slog.Logger) (kvstore.Backend, error)
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

func (p *Params) defaults() {
	p.Poll = cmp.Or(p.Poll, time.Second)
	p.Describe = cmp.Or(p.Describe, 5*time.Second)
	p.Log = cmp.Or(p.Log, slog.New(slog.DiscardHandler))
}
