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

// Status implements [kvstore.Backend].
func (c *Client) Status() kvstore.Status {
	leases, keys := c.leases.count()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Endpoints = slices.Clone(s.Endpoints)
	s.Leases, s.LeasedKeys = leases, keys
	return s
}

// checkLoop asks the store how it is, at once and then at the intervals of the settings, until the client is closed.
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
		resp, err := c.etcd.Get(clientv3.WithRequireLeader(ctx), kvstore.HeartbeatKey)
		if err == nil {
			c.observe(before, resp.Header)
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
	leases, _ := c.leases.count()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
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
	was := s.State
	s.Endpoints = endpoints
	if quorum == nil {
		s.QuorumFailures, s.LastOK, s.LastError, s.State = 0, time.Now(), fault, kvstore.StateOK
		if up < len(endpoints) {
			s.State = kvstore.StateDegraded
		}
		s.Message = fmt.Sprintf("etcd: %d of %d endpoints answer, %d leases, quorum", up, len(endpoints), leases)
	} else {
		s.QuorumFailures++
		s.LastError = quorum.Error()
		switch {
		case s.QuorumFailures > c.cfg.MaxQuorumFailures:
			s.State = kvstore.StateFailed
		case !s.LastOK.IsZero():
			s.State = kvstore.StateDegraded
		}
		s.Message = fmt.Sprintf("etcd: %d of %d endpoints answer, %d leases, no quorum for %d checks in a row: %v",
			up, len(endpoints), leases, s.QuorumFailures, quorum)
	}
	if s.State != was {
		c.log.Info("state of etcd changed", "from", was, "to", s.State, "detail", s.Message)
	}
	return quorum == nil
}
