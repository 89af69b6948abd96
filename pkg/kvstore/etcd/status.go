package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// noSpaceAlarm is in what a member reports while any of the cluster has too little space: then all
// refuse writes.
const noSpaceAlarm = "alarm:NOSPACE"

// Layout implements [kvstore.Backend].
func (c *Client) Layout() kvstore.Layout { return kvstore.LayoutEtcd }

// Status implements [kvstore.Backend].
func (c *Client) Status() kvstore.Status { return c.health.Status() }

// check asks every endpoint for its state, and the cluster for a read that needs a quorum.
func (c *Client) check() bool {
	ctx, cancel := context.WithTimeout(c.conn.Context(), c.cfg.CheckTimeout)
	defer cancel()
	quorum := make(chan error, 1)
	go func() {
		before := c.history.seen()
		resp, err := c.etcd.Get(clientv3.WithRequireLeader(ctx), c.cfg.HeartbeatKey)
		var revision int64
		if err == nil {
			c.observe(before, resp.Header)
			if len(resp.Kvs) > 0 {
				revision = resp.Kvs[0].ModRevision
				c.history.remember(change{key: c.cfg.HeartbeatKey, revision: revision, value: string(resp.Kvs[0].Value)})
			}
		}
		c.health.Heartbeat(revision, err)
		quorum <- err
	}()
	names := c.etcd.Endpoints()
	endpoints := make([]kvstore.EndpointStatus, len(names))
	done := make(chan struct{}, len(names))
	var full atomic.Bool
	for i, name := range names {
		go func() {
			defer func() { done <- struct{}{} }()
			endpoints[i] = kvstore.EndpointStatus{Address: name}
			st, err := c.etcd.Status(ctx, name)
			switch {
			case err != nil:
				endpoints[i].Message = err.Error()
			case len(st.Errors) > 0:
				endpoints[i].Message = fmt.Sprintf("version %s, reports %q", st.Version, st.Errors)
				if slices.ContainsFunc(st.Errors, func(e string) bool { return strings.Contains(e, noSpaceAlarm) }) {
					full.Store(true)
				}
			default:
				endpoints[i].Healthy = true
				endpoints[i].Message = "version " + st.Version
				if st.Header.GetMemberId() == st.Leader {
					endpoints[i].Message += ", leader"
				}
			}
		}()
	}
	for range names {
		<-done
	}
	err := <-quorum
	if c.conn.Closed() {
		return false
	}
	if why := c.unconnected.Load(); err != nil && why != nil && *why != nil {
		err = fmt.Errorf("%w: %w", *why, err)
	}
	return c.health.Checked(endpoints, full.Load(), err)
}
