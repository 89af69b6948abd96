package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hawser-net/hawser/internal/announce"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/table"
)

// placer says where addresses are: to this node's kernel by way of the address table, and to the
// other nodes by way of the key-value store.
type placer struct {
	cfg    Config
	facts  nodeFacts
	cache  *ipcache.Cache
	kernel *table.Reconciler[netip.Prefix, ipcache.Entry]
	shared *announce.Addresses
	log    *slog.Logger
	// plain has the kernel leave addresses unmasqueraded.
	plain *unmasqueraded
	// cluster tells the other nodes by objects of Kubernetes; nil outside of it.
	cluster *kube
	// unplaced tells policy of what the kernel has no room for.
	unplaced func()
	// late: the last endpoint did not wait long enough for the key-value store.
	late atomic.Bool
}

// announceWait bounds how long an endpoint waits for the key-value store to take its addresses. A
// peer that knows an address from its first packet on judges it rightly; but a store that is away
// must not keep pods from starting.
const announceWait = 500 * time.Millisecond

// announceLate is the wait while the store was away the last time.
const announceLate = 10 * time.Millisecond

// Place claims the row's addresses and tells the other nodes. A temporary identity is told to
// nobody: see endpoint.Endpoint.Seen.
func (p *placer) Place(ctx context.Context, row endpoint.Endpoint) error {
	if err := p.plain.set(row); err != nil {
		return err
	}
	owner := strconv.Itoa(int(row.ID))
	var ports []ipcache.NamedPort
	for _, np := range row.NamedPorts {
		ports = append(ports, ipcache.NamedPort{Name: np.Name, Port: np.Port, Protocol: datapath.ProtoName(np.Proto)})
	}
	type written struct {
		prefix   netip.Prefix
		revision uint64
	}
	var (
		waits    []written
		revision uint64
		errs     []error
	)
	for _, ip := range row.Addresses() {
		prefix := ipcache.Single(ip)
		rev, err := p.cache.Upsert(prefix, ipcache.Claim{
			Source: ipcache.Endpoint, Owner: owner, Identity: row.Seen(), Namespace: row.Namespace, Pod: row.PodName, NamedPorts: ports,
		})
		errs = append(errs, err)
		revision = max(revision, rev)
		rev, err = p.shared.Announce(ipcache.Pair{
			Prefix: prefix, Host: p.facts.hostFor(ip), Identity: row.Seen(), Namespace: row.Namespace, Pod: row.PodName, NamedPorts: ports,
			Metadata: fmt.Sprintf("cilium-global:%s:%s:%d", p.cfg.ClusterName, p.cfg.NodeName, row.ID),
		})
		errs = append(errs, err)
		waits = append(waits, written{prefix, rev})
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("place the addresses of endpoint %d: %w", row.ID, err)
	}
	for _, ip := range row.Addresses() {
		if err := p.kernel.WaitDone(ctx, ipcache.Single(ip), revision); err != nil {
			return fmt.Errorf("tell the kernel where %s is: %w", ip, err)
		}
	}
	if p.cluster != nil && row.Pod() != "" {
		p.cluster.endpoints.Set(localEndpoint(row, ports))
	}
	if p.cfg.KVStore == "" || row.State == endpoint.StateRestoring {
		return nil // nobody to tell, or they have been told
	}
	wait := announceWait
	if p.late.Load() {
		wait = announceLate
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for _, w := range waits {
		if err := p.shared.WaitWritten(ctx, w.prefix, w.revision); err != nil {
			p.late.Store(true)
			p.log.Warn("other nodes are told of an endpoint later", "endpoint", row.ID, "error", err)
			return nil
		}
	}
	p.late.Store(false)
	return nil
}

// Withdraw takes the row's addresses back, unless another endpoint has them by now.
func (p *placer) Withdraw(row endpoint.Endpoint) {
	p.plain.remove(row)
	owner := strconv.Itoa(int(row.ID))
	for _, ip := range row.Addresses() {
		prefix := ipcache.Single(ip)
		p.cache.Delete(prefix, ipcache.Endpoint, owner)
		if e, ok := p.cache.Table().Get(prefix); ok && e.Source == ipcache.Endpoint {
			continue
		}
		p.shared.Withdraw(prefix)
	}
	if p.cluster != nil && row.Pod() != "" {
		p.cluster.endpoints.Remove(localEndpoint(row, nil))
	}
}

// prefixWait bounds the wait for the kernel to learn of prefixes; it is a local matter.
const prefixWait = 10 * time.Second

// rulePrefixes is the owner of the claims that rules make.
const rulePrefixes = "policy"

// PlacePrefixes gives prefixes that rules name their identities, and takes others back. What the
// kernel has no room for is no error: see judgeAddresses.
func (p *placer) PlacePrefixes(upserts map[netip.Prefix]identity.ID, deletes []netip.Prefix) error {
	revision, err := p.cache.UpsertGenerated(rulePrefixes, upserts)
	if err != nil {
		return err
	}
	for _, prefix := range deletes {
		revision = max(revision, p.cache.Delete(prefix, ipcache.Generated, rulePrefixes))
	}
	ctx, cancel := context.WithTimeout(context.Background(), prefixWait)
	defer cancel()
	if err := p.kernel.WaitTried(ctx, revision); err != nil {
		return fmt.Errorf("tell the kernel of the prefixes in rules: %w", err)
	}
	// What the kernel has no room for concerns those only whose rules name it.
	p.unplaced()
	return nil
}
