package scale

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/bench/child"
)

// The operators' lease: its name, and the namespace they run in if none is set.
const (
	leaseName      = "cilium-operator-resource-lock"
	leaseNamespace = "default"
)

// startOperator starts one more operator, with identities as objects. It does not wait for it.
func (c *cluster) startOperator(flags ...string) (*child.Process, error) {
	c.started++
	argv := slices.Concat(c.r.cfg.Operator, []string{
		"--k8s-kubeconfig-path", c.kubeconfig, "--identity-allocation-mode", "crd", "--ipam", "kubernetes",
		"--operator-api-serve-addr", "", "--enable-metrics=false",
	}, flags)
	p, err := child.Start(fmt.Sprintf("operator %d", c.started), filepath.Join(c.dir, fmt.Sprintf("operator-%d.log", c.started)), nil, argv...)
	if err == nil {
		c.operators = append(c.operators, p)
	}
	return p, err
}

// holder returns the holder of the operators' lease, "" if there is none.
func (c *cluster) holder(ctx context.Context) (string, error) {
	lease, err := c.client.Urgent.CoordinationV1().Leases(leaseNamespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil {
		return "", nil
	}
	return *lease.Spec.HolderIdentity, nil
}

// awaitLeader waits for a leader other than the one named.
func (c *cluster) awaitLeader(ctx context.Context, not string) (leader string, err error) {
	running := func() bool {
		return slices.ContainsFunc(c.operators, func(p *child.Process) bool { return !p.Ended() })
	}
	err = child.Poll(ctx, 2*time.Minute, 20*time.Millisecond, func() (err error) {
		leader, err = c.holder(ctx)
		if err == nil && (leader == "" || leader == not) && running() {
			err = errors.New("there is no leader")
		}
		return err
	})
	if err == nil && (leader == "" || leader == not) {
		err = errors.New("all have ended")
	}
	if err != nil {
		return "", fmt.Errorf("no operator leads: %w: %s", err, c.operators[len(c.operators)-1].Tail())
	}
	return leader, nil
}

// startOperators starts a leader, waits until it leads, and then starts another one that is to
// follow it.
func (c *cluster) startOperators(ctx context.Context, flags ...string) (leader *child.Process, name string, err error) {
	if leader, err = c.startOperator(flags...); err != nil {
		return nil, "", err
	}
	if name, err = c.awaitLeader(ctx, ""); err != nil {
		return nil, "", err
	}
	_, err = c.startOperator(flags...)
	return leader, name, err
}
