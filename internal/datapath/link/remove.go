package link

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/pkg/retry"
)

// DeleteEndpoint implements datapath.Links. It queues the interface for the goroutine in Run and
// returns at once. If ifIndex is 0 the interface is looked up by name. Only a pod's interface is
// ever removed: the name is checked again when its turn comes.
func (l *Links) DeleteEndpoint(ifName string, ifIndex int) error {
	if ifName != "" && !strings.HasPrefix(ifName, EndpointPrefix) {
		return fmt.Errorf("refusing to remove interface %q: not a pod's (%s...)", ifName, EndpointPrefix)
	}
	if ifIndex == 0 {
		if ifName == "" {
			return errors.New("remove a pod's interface: neither name nor index given")
		}
		link, err := l.h.LinkByName(ifName)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look up interface %s: %w", ifName, err)
		}
		ifIndex = link.Attrs().Index
	}
	l.mu.Lock()
	l.doomed[ifIndex] = ifName
	delete(l.raised, ifIndex)
	l.mu.Unlock()
	retry.Notify(l.wake)
	return nil
}

// Run removes queued interfaces until ctx ends, then those still queued, and returns nil. Failures
// are logged and the interface dropped from the queue: it reappears in EndpointLinks.
func (l *Links) Run(ctx context.Context) error {
	timer := time.NewTimer(l.cfg.DeleteWindow)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			l.flushLogged()
			return nil
		case <-l.wake:
		}
		// Others are likely to follow: pods go in crowds.
		timer.Reset(l.cfg.DeleteWindow)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		l.flushLogged()
	}
}

func (l *Links) flushLogged() {
	if err := l.Flush(); err != nil {
		l.log.Error("Could not remove pod interfaces", "error", err)
	}
}

// Flush removes everything queued before it returns.
func (l *Links) Flush() error {
	// One removal at a time: while one waits for the kernel the next crowd gathers.
	l.removeMu.Lock()
	defer l.removeMu.Unlock()
	l.mu.Lock()
	batch := maps.Clone(l.doomed)
	l.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	var errs []error
	var reqs []*request
	for index, name := range batch {
		ok, err := l.removable(index, name)
		if err != nil {
			errs = append(errs, err)
		}
		if ok {
			reqs = append(reqs, linkGroup(index, RemovalGroup))
		}
	}
	if len(reqs) > 0 {
		// On a socket of its own, so that endpoints that come meanwhile need not wait longer than
		// the kernel makes them.
		reqs = append(reqs, delGroup(RemovalGroup))
		errs = append(errs, l.rm.run(reqs...)...)
	}
	l.mu.Lock()
	for index := range batch {
		delete(l.doomed, index)
	}
	l.mu.Unlock()
	if l.removed != nil {
		l.removed(len(batch))
	}
	return errors.Join(errs...)
}

// removable checks that the interface with that index still is the pod's interface it was when it
// was queued.
func (l *Links) removable(index int, name string) (bool, error) {
	link, err := l.h.LinkByIndex(index)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up interface %d: %w", index, err)
	}
	have := link.Attrs().Name
	if !isEndpointLink(link) || (name != "" && name != have) {
		return false, fmt.Errorf("interface %d is %s (%s), not the pod interface %s: left alone", index, have, link.Type(), name)
	}
	return true, nil
}
