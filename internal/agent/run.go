package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/health"
	"github.com/hawser-net/hawser/internal/agent/identities"
	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/agent/podevents"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/pkg/retry"
)

// errEnded means that the agent has ended before it was up.
var errEnded = errors.New("the agent has ended")

// bringUp sets up the node itself: addresses, devices, programs. Restored endpoints come first,
// because the router must not take one of their addresses. It returns how many there are, and what
// ends the uses of their identities that were made for them meanwhile.
func (p *parts) bringUp(ctx context.Context, run *group) (restored int, release func(context.Context), err error) {
	run.start("link", p.kernel.links.Run)
	run.start("ipcache", p.tables.addresses.Run)
	run.start("named-ports", p.tables.namedPorts.Run)
	if err := health.RemoveEndpoint(p.kernel.links); err != nil {
		return 0, nil, err
	}
	if err := p.lifecycle.Load(ctx); err != nil {
		return 0, nil, err
	}
	if err := p.plain.Restore(p.tables.registry.List()); err != nil {
		return 0, nil, err
	}
	if p.health != nil {
		p.health.Reserve()
	}
	if err := p.refusePods(); err != nil {
		return 0, nil, err
	}
	if err := p.network.TakeRouters(); err != nil {
		return 0, nil, err
	}
	if err := p.network.KeepPrograms(); err != nil {
		return 0, nil, err
	}
	if err := p.network.Configure(); err != nil {
		return 0, nil, err
	}
	p.connectInterfaces()
	p.network.PlaceSelf()
	// The rules come before the pods: an endpoint that is new to the kernel must not be open for as
	// long as the files take to be read.
	if p.followFiles(run).wait(run.ctx) != nil {
		return 0, nil, errEnded
	}
	p.rest.NoteUserLabels()
	release = p.tables.identities.Restore(p.tables.registry.List())
	if restored, err = p.lifecycle.Resume(ctx); err != nil {
		return 0, nil, err
	}
	p.tables.pool.Open()
	return restored, release, nil
}

// connectInterfaces has the packets of pods leave by the network interfaces of the cloud that their
// addresses are of: those from before the restart at once, later ones before a pod gets them.
func (p *parts) connectInterfaces() {
	if !addressing.OfCloud(p.cfg.IPAM) {
		return
	}
	u := addressing.Uplinks{Network: p.kernel.interfaces, MTU: p.network.Devices().DeviceMTU, NativeCIDRs: p.cfg.NativeCIDRs()}
	if p.cfg.MasqueradeIPv4 {
		u.Masquerade |= ipam.IPv4
	}
	if p.cfg.MasqueradeIPv6 {
		u.Masquerade |= ipam.IPv6
	}
	p.cluster.singles.Connect(u)
}

// followFiles begins to follow the policy files. It returns what opens when they have been read.
func (p *parts) followFiles(run *group) *latch {
	read, synced := newLatch(), p.everything.expect("policy files")
	run.start("policy-files", func(ctx context.Context) error {
		return p.files.Run(ctx, func(changes []policy.Change) {
			err := p.rules.Apply(changes)
			if err != nil {
				p.log.Error("policy is not fully in force", "error", err)
			}
			p.tables.components.Report("rules", err, "all rules are in force")
			p.tables.metrics.policyUp.Add(float64(len(changes)))
			synced()
			read.open()
		})
	})
	return read
}

// follow starts to follow the sources, and to reconcile the kernel with the tables. release is that
// of bringUp.
func (p *parts) follow(run *group, release func(context.Context)) error {
	t := p.tables
	identitiesSynced := p.identitiesSynced(p.everything.expect("identities"))
	nodesSynced, addressesSynced := p.everything.expect("nodes"), p.everything.expect("addresses in the store")
	if p.kube == nil {
		t.policy.RulesObserved() // from the files
	}
	if err := p.announcer.announce(); err != nil {
		return err
	}
	if p.kube != nil {
		p.kube.start(run, p.announcer)
	}
	if p.services != nil {
		servicesSynced := p.everything.expect("services")
		run.start("services", func(ctx context.Context) error { return p.services.Run(ctx, servicesSynced) })
	}
	run.start("identities", func(ctx context.Context) error {
		return t.identities.Run(ctx, t.policy, identitiesSynced, func(set labels.Set, id identity.ID) {
			p.lifecycle.Renumber(ctx, set, id)
		})
	})
	run.start("allocator", p.cluster.afterKinds(t.identities.RunAllocator))
	run.start("nodes", t.nodes.Run)
	run.start("addresses", t.shared.Run)
	run.start("addresses-synced", func(ctx context.Context) error {
		if t.shared.WaitSynced(ctx) == nil {
			addressesSynced()
		}
		return nil
	})
	p.mesh.start(run, p.everything)
	p.startNetwork(run, nodesSynced)
	p.startEndpoints(run, release)
	run.start("synced", p.whenSynced)
	run.start("ipam", t.pool.Run)
	run.start("events", func(ctx context.Context) error { return p.monitor.Run(ctx, p.kernel.maps) })
	run.start("housekeeping", p.housekeeping)
	return nil
}

// identitiesSynced returns what is to be called when the identities of the cluster are known.
func (p *parts) identitiesSynced(synced func()) func() {
	return func() {
		if p.kube != nil {
			p.kube.identitiesSynced()
		} else {
			p.tables.policy.Observed()
		}
		synced()
	}
}

// startNetwork begins to keep the node's own networking. synced is called when all nodes are known.
func (p *parts) startNetwork(run *group, synced func()) {
	run.start("filters", func(ctx context.Context) error {
		return p.network.GuardFilters(ctx, p.lifecycle.Reattach, func(n int) { p.tables.metrics.reattached.Add(float64(n)) })
	})
	if addressing.OfCloud(p.cfg.IPAM) {
		run.start("interfaces", func(ctx context.Context) error {
			return p.kernel.interfaces.Run(ctx, p.cluster.singles.InterfacesChanged)
		})
	}
	run.start("damage", p.network.WatchDamage)
	run.start("node-addresses", p.network.WatchAddresses)
	run.start("routes", func(ctx context.Context) error {
		return p.network.Run(ctx, network.Cluster{
			Wait: func(ctx context.Context) error {
				if err := p.waitNodes(ctx); err != nil {
					return err
				}
				return p.meshSynced.wait(ctx)
			},
			Synced: func() {
				if p.kube != nil {
					p.kube.servers.NodesSynced()
				}
				synced()
			},
			Changed: func() {
				p.mesh.setMine()
				if p.kube != nil {
					p.kube.servers.NodesChanged()
				}
			},
			Size: func(nodes int) {
				if s, ok := p.tables.store.(interface{ SetClusterSize(clients int) }); ok {
					s.SetClusterSize(nodes)
				}
			},
			Serve:  p.serveAddresses,
			Repair: p.lifecycle.Repair,
		})
	})
}

// startEndpoints begins to give endpoints their identities, restored ones first, and to undo what
// is left of failed changes.
func (p *parts) startEndpoints(run *group, release func(context.Context)) {
	t := p.tables
	replacer := &replacer{
		log: p.log, lifecycle: p.lifecycle, identities: t.identities, registry: t.registry, components: t.components, inForce: p.inForce,
	}
	if p.cluster != nil {
		replacer.events = podevents.New(p.cfg.NodeName, p.cfg.management(), p.cluster.client, p.log.With("part", "kubernetes"))
	}
	run.start("temporary-identities", replacer.run)
	run.start("restored", func(ctx context.Context) error {
		if p.kube != nil {
			p.kube.labels.await(ctx)
		}
		err := p.lifecycle.Reacquire(ctx)
		if ctx.Err() == nil {
			release(ctx)
		}
		return err
	})
	run.start("identities-ended", identities.NewConfirmer(identities.ConfirmerConfig{
		Identities: t.identities, InForce: p.inForce.opened, Addresses: t.cache, Kernel: t.addresses.Reconciler, Endpoints: t.registry, Policy: t.policy,
		Nodes: func() int { return t.nodes.Table().Len() }, Log: p.log.With("part", "identity"),
	}).Run)
	run.start("recovery", p.recover)
}

// pruneWait bounds how long the end of synchronisation waits for the kernel's address map to be
// gone through; that goes on beyond.
const pruneWait = 30 * time.Second

// whenSynced removes what only an earlier agent needed, once everything has been observed that
// could still want it.
func (p *parts) whenSynced(ctx context.Context) error {
	t := p.tables
	if p.everything.wait(ctx) != nil {
		return nil
	}
	// The address table first: rows to which the endpoints' new rules refer must be there. One that
	// cannot be written, because the map is full for example, must not hold up the rest.
	if err := t.addresses.WaitTried(ctx, t.cache.Table().Revision()); err != nil {
		return nil // the agent ends
	}
	t.namedPorts.Sync()
	err := errors.Join(t.policy.Synced(), p.rules.Retry())
	if err != nil {
		p.log.Error("policy is not fully in force", "error", err)
	}
	p.reportPolicy(err)
	p.network.ReplacePrograms()
	p.inForce.open()
	t.shared.Prune()
	pruned, cancel := context.WithTimeout(ctx, pruneWait)
	defer cancel()
	pruneErr := t.addresses.WaitPruned(pruned)
	if pruneErr != nil {
		p.log.Warn("addresses from before the restart are still being removed from the kernel", "error", pruneErr)
	} else {
		p.dropRestored()
	}
	t.components.Set(partSync, rest.StateOk, "everything was observed")
	// The first listings, and the look through the kernel's maps, take much more memory than what
	// is kept of them.
	debug.FreeOSMemory()
	p.log.Info("synchronised with the cluster")
	if pruneErr != nil && t.addresses.WaitPruned(ctx) == nil {
		p.dropRestored()
	}
	return nil
}

// reportPolicy shows whether the rule sets of endpoints are in the kernel.
func (p *parts) reportPolicy(err error) {
	p.tables.components.Report("policy", err, "all endpoints have their rule sets")
}

// dropRestored forgets the prefixes of earlier rules, once the kernel has.
func (p *parts) dropRestored() {
	if err := p.rules.DropRestored(); err != nil {
		p.log.Warn("cannot clear up after the prefixes of earlier rules", "error", err)
	}
}

// housekeeping does what has no event of its own to wait for.
func (p *parts) housekeeping(ctx context.Context) error {
	flows := time.NewTicker(p.cfg.CTInterval)
	defer flows.Stop()
	sweep := time.NewTicker(max(p.cfg.OrphanGrace/2, time.Second))
	defer sweep.Stop()
	retry := time.NewTicker(5 * time.Second)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-flows.C:
			alive, removed, err := p.kernel.maps.CollectCT(ctx)
			if ctx.Err() != nil {
				return nil
			}
			shares, failed := p.kernel.maps.FlowShares()
			p.tables.components.Warn("conntrack", errors.Join(err, failed), fmt.Sprintf("%d flows, %d expired ones removed%s", alive, removed, beyondShares(shares)))
		case <-sweep.C:
			p.tables.components.Warn("orphans", p.lifecycle.Sweep(), "no interface without an endpoint stays")
		case <-retry.C:
			if p.inForce.isOpen() {
				p.network.ReplacePrograms()
			}
			err := errors.Join(p.rules.Retry(), p.tables.policy.Retry())
			if p.kube != nil {
				p.kube.servers.Retry()
			}
			if err != nil {
				p.log.Error("policy is not fully in force", "error", err)
			}
			p.reportPolicy(err)
			p.tables.reportEdited()
		}
	}
}

// recoverPause is the time between two attempts to undo what is left of failed changes.
const recoverPause = 5 * time.Second

// partRecords is the name under which the status shows endpoints whose records are outdated.
const partRecords = "endpoint-records"

// recover undoes what is left of failed changes of endpoints, and puts back what another program
// has removed from the state directory. It waits for the kernel and the disk only.
func (p *parts) recover(ctx context.Context) error {
	for {
		if !retry.Sleep(ctx, recoverPause) {
			return nil
		}
		if err := p.lifecycle.Recover(ctx); err != nil && ctx.Err() == nil {
			p.log.Error("a failed change could not be undone completely", "error", err)
		}
		p.tables.components.Warn(partRecords, errors.Join(p.lifecycle.Save(), p.cfg.state.Keep()), "all endpoints are on disk")
	}
}
