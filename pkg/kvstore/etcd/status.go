package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Layout implements [kvstore.Backend].
func (c *Client) Layout() kvstore.Layout { return kvstore.LayoutEtcd }

// Status implements [kvstore.Backend]. The counts are of now, the rest is what the last check
// found.
func (c *Client) Status() kvstore.Status {
	leases, keys := c.leases.Count()
	age, beats := c.beat.Age(time.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Endpoints = slices.Clone(s.Endpoints)
	s.Leases, s.LeasedKeys = leases, keys
	found := fmt.Sprintf("etcd: %d of %d endpoints answer, %d leases with %d keys", c.up, len(s.Endpoints), leases, keys)
	switch {
	case s.State == kvstore.StateClosed:
		s.Message = "etcd: closed"
	case len(s.Endpoints) == 0:
		s.Message = "etcd: connecting"
		if s.LastError != "" {
			s.Message += ": " + s.LastError
		}
	case c.quorum != nil:
		s.Message = fmt.Sprintf("%s, no quorum for %d checks in a row: %v", found, s.QuorumFailures, c.quorum)
	case beats && age > c.cfg.HeartbeatStaleAfter && c.cfg.HeartbeatStaleAfter > 0:
		s.State = kvstore.StateFailed
		s.LastError = fmt.Sprintf("the heartbeat (%s) has not changed for %s", c.cfg.HeartbeatKey, age.Round(time.Second))
		s.Message = found + ", quorum, but " + s.LastError
	default:
		s.Message = found + ", quorum"
	}
	return s
}

// checkLoop asks the store how it is, at once and then at the intervals of the settings, until the
// client is closed.
func (c *Client) checkLoop() {
	for {
		ok := c.check()
		pause := c.cfg.CheckInterval
		if !ok {
			pause = c.cfg.FailingCheckInterval
		}
		// Up to a tenth more or less, so that a cluster's clients do not ask in step.
		if !sleep(c.ctx, pause*9/10+rand.N(pause/5+1)) {
			return
		}
	}
}

// check asks every endpoint for its state, and the cluster for a read that needs a quorum.
func (c *Client) check() bool {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.CheckTimeout)
	defer cancel()
	quorum := make(chan error, 1)
	go func() {
		before := c.history.seen()
		resp, err := c.etcd.Get(clientv3.WithRequireLeader(ctx), c.cfg.HeartbeatKey)
		if err == nil {
			c.observe(before, resp.Header)
			var revision int64
			if len(resp.Kvs) > 0 {
				revision = resp.Kvs[0].ModRevision
				c.history.remember(change{key: c.cfg.HeartbeatKey, revision: revision, value: string(resp.Kvs[0].Value)})
			}
			c.beat.Note(revision, time.Now())
		} else {
			c.beat.Miss()
		}
		quorum <- err
	}()
	names := c.etcd.Endpoints()
	endpoints := make([]kvstore.EndpointStatus, len(names))
	done := make(chan struct{}, len(names))
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
			default:
				endpoints[i].Healthy = true
				endpoints[i].Message = "version " + st.Version
				if st.Header.MemberId == st.Leader {
					endpoints[i].Message += ", leader"
				}
			}
		}()
	}
	for range names {
		<-done
	}
	err := <-quorum
	if c.ctx.Err() != nil {
		return false
	}
	return c.book(endpoints, err)
}

// book writes the outcome of a check into the status.
func (c *Client) book(endpoints []kvstore.EndpointStatus, quorum error) bool {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	up, fault := 0, ""
	for _, e := range endpoints {
		if e.Healthy {
			up++
		} else {
			fault = e.Address + ": " + e.Message
		}
	}
	s := &c.status
	s.Endpoints, c.up, c.quorum = endpoints, up, quorum
	if quorum == nil {
		s.QuorumFailures, s.LastOK, s.LastError, s.State = 0, time.Now(), fault, kvstore.StateOK
		if up < len(endpoints) {
			s.State = kvstore.StateDegraded
		}
	} else {
		s.QuorumFailures++
		s.LastError = quorum.Error()
		switch {
		case s.QuorumFailures > c.cfg.MaxQuorumFailures:
			s.State = kvstore.StateFailed
		case !s.LastOK.IsZero():
			s.State = kvstore.StateDegraded
		}
	}
	was := c.told
	c.mu.Unlock()
	now := c.Status()
	if now.State != was {
		c.log.Info("state of etcd changed", "from", was, "to", now.State, "detail", now.Message)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = now.State
	return quorum == nil
}
