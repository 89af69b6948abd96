package placement

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
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
)

// Objects publish this node's pods to the other nodes by objects of Kubernetes.
type Objects interface {
	Set(endpoints.Local)
	Remove(endpoints.Local)
}

// Config gives a Publisher what it uses.
type Config struct {
	Log *slog.Logger
	// Cluster and Node are the names of this node, Host is the underlay address that is announced
	// for its pods.
	Cluster, Node string
	Host          netip.Addr
	Cache         *ipcache.Cache
	Addresses     *Addresses
	Shared        *announce.Addresses
	// Wait means that other nodes read Shared, so that an endpoint waits for it.
	Wait          bool
	Unmasqueraded *Unmasqueraded
	Objects       Objects // nil outside of Kubernetes
}

// Publisher publishes where addresses are: to this node's kernel by way of the address table, and
// to the other nodes by way of the key-value store and of objects.
type Publisher struct {
	cfg Config
	// late: the last endpoint did not wait long enough for the key-value store.
	late atomic.Bool
}

// New returns a Publisher that has published nothing.
func New(cfg Config) *Publisher { return &Publisher{cfg: cfg} }

// announceWait bounds how long an endpoint waits for the key-value store to take its addresses. A
// peer that knows an address from its first packet on evaluates it rightly; but a store that is
// away must not keep pods from starting.
const announceWait = 500 * time.Millisecond

// announceLate is the wait while the store was away the last time.
const announceLate = 10 * time.Millisecond

// Publish claims the row's addresses and publishes them to the other nodes. A temporary identity is
// never published: see endpoint.Endpoint.Seen.
func (p *Publisher) Publish(ctx context.Context, row endpoint.Endpoint) error {
	if err := p.cfg.Unmasqueraded.set(row); err != nil {
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
		rev, err := p.cfg.Cache.Upsert(prefix, ipcache.Claim{
			Source: ipcache.Endpoint, Owner: owner, Identity: row.Seen(), Namespace: row.Namespace, Pod: row.PodName, NamedPorts: ports,
		})
		errs = append(errs, err)
		revision = max(revision, rev)
		rev, err = p.cfg.Shared.Announce(ipcache.Pair{
			Prefix: prefix, Host: p.cfg.Host, Identity: row.Seen(), Namespace: row.Namespace, Pod: row.PodName, NamedPorts: ports,
			Metadata: fmt.Sprintf("cilium-global:%s:%s:%d", p.cfg.Cluster, p.cfg.Node, row.ID),
		})
		errs = append(errs, err)
		waits = append(waits, written{prefix, rev})
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("place the addresses of endpoint %d: %w", row.ID, err)
	}
	for _, ip := range row.Addresses() {
		if err := p.cfg.Addresses.WaitDone(ctx, ipcache.Single(ip), revision); err != nil {
			return fmt.Errorf("write the location of %s to the kernel: %w", ip, err)
		}
	}
	if p.cfg.Objects != nil && row.Pod() != "" {
		p.cfg.Objects.Set(local(row, ports))
	}
	if !p.cfg.Wait || row.State == endpoint.StateRestoring {
		return nil // no other node to notify, or all have been
	}
	wait := announceWait
	if p.late.Load() {
		wait = announceLate
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for _, w := range waits {
		if err := p.cfg.Shared.WaitWritten(ctx, w.prefix, w.revision); err != nil {
			p.late.Store(true)
			p.cfg.Log.Warn("an endpoint is published to other nodes later", "endpoint", row.ID, "error", err)
			return nil
		}
	}
	p.late.Store(false)
	return nil
}

// Withdraw takes the row's addresses back, unless another endpoint has them by now.
func (p *Publisher) Withdraw(row endpoint.Endpoint) {
	p.cfg.Unmasqueraded.remove(row)
	owner := strconv.Itoa(int(row.ID))
	for _, ip := range row.Addresses() {
		prefix := ipcache.Single(ip)
		p.cfg.Cache.Delete(prefix, ipcache.Endpoint, owner)
		if e, ok := p.cfg.Cache.Table().Get(prefix); ok && e.Source == ipcache.Endpoint {
			continue
		}
		p.cfg.Shared.Withdraw(prefix)
	}
	if p.cfg.Objects != nil && row.Pod() != "" {
		p.cfg.Objects.Remove(local(row, nil))
	}
}

// prefixWait bounds the wait until prefixes are in the kernel, which depends on this node only.
const prefixWait = 10 * time.Second

// rulePrefixes is the owner of the claims that rules make.
const rulePrefixes = "policy"

// PublishPrefixes gives prefixes that rules name their identities, and takes others back. What the
// kernel has no room for is no error: see [Addresses].
func (p *Publisher) PublishPrefixes(upserts map[netip.Prefix]identity.ID, deletes []netip.Prefix) error {
	revision, err := p.cfg.Cache.UpsertGenerated(rulePrefixes, upserts)
	if err != nil {
		return err
	}
	for _, prefix := range deletes {
		revision = max(revision, p.cfg.Cache.Delete(prefix, ipcache.Generated, rulePrefixes))
	}
	ctx, cancel := context.WithTimeout(context.Background(), prefixWait)
	defer cancel()
	if err := p.cfg.Addresses.WaitTried(ctx, revision); err != nil {
		return fmt.Errorf("write the prefixes of rules to the kernel: %w", err)
	}
	// What the kernel has no room for concerns those only whose rules name it.
	p.cfg.Addresses.reportUnplaced()
	return nil
}

// local is what is published of an endpoint by objects.
func local(row endpoint.Endpoint, ports []ipcache.NamedPort) endpoints.Local {
	id := row.Identity
	if id.IsTemporary() {
		id = 0 // the identity in the object stays
	}
	return endpoints.Local{
		PodCreated: row.PodCreated, Number: row.ID, Attachment: row.AttachmentID(), Namespace: row.Namespace, Pod: row.PodName, UID: row.PodUID, IPv4: row.IPv4, IPv6: row.IPv6,
		Identity: id, IdentityLabels: row.IdentityLabels, Labels: row.Labels, NamedPorts: ports, State: string(row.State),
	}
}
