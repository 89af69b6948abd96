package link

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

const (
	// attachDebounce is how long a burst of messages about interfaces may last: one that is
	// attached is renamed and brought up by others at the same time.
	attachDebounce = 20 * time.Millisecond
	// interfaceCheck is how often all is compared with the kernel, for what it did not notify.
	interfaceCheck = 30 * time.Second
	// Between attempts at what has failed.
	interfaceRetry, interfaceRetryMax = time.Second, 30 * time.Second
)

// Run repeats the last Set when an interface of it comes or goes, when another process removes what
// it had set up, when it or Set has failed, and periodically. It calls changed with what Set would
// have returned the first time, and whenever that is not what Set returned, or changed was called
// with, last; it has no lock meanwhile. Before the first Set it touches nothing. It returns nil
// when ctx ends.
func (i *Interfaces) Run(ctx context.Context, changed func([]datapath.InterfaceState, error)) error {
	w, err := i.links.listen(ctx, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("watch the cloud's interfaces: %w", err)
	}
	defer w.close()
	first, retry := true, time.Duration(0)
	next := time.Now() // what has happened before the watch began was not observed
	for ctx.Err() == nil {
		// Set may fail meanwhile.
		got, err := w.next(min(max(0, time.Until(next)), interfaceRetry))
		switch {
		case errors.Is(err, unix.ENOBUFS):
			next = time.Now()
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("watch the cloud's interfaces: %w", err)
		case slices.ContainsFunc(got, i.concerns):
			next = earlier(next, time.Now().Add(attachDebounce))
		}
		if ctx.Err() != nil {
			continue
		}
		i.mu.Lock()
		if i.again {
			// Whatever has failed before may have been waited for long by now.
			i.again, retry, next = false, 0, time.Now()
		}
		if time.Now().Before(next) {
			i.mu.Unlock()
			continue
		}
		if !i.begun {
			i.mu.Unlock()
			next = time.Now().Add(attachDebounce)
			continue
		}
		states, err := i.reconcile()
		now := outcome(states, err)
		notify := first || now != i.last
		first, i.last = false, now
		i.mu.Unlock()
		if notify {
			changed(states, err)
		}
		next = time.Now().Add(interfaceCheck)
		if err == nil {
			retry = 0
			continue
		}
		retry = min(max(2*retry, interfaceRetry), interfaceRetryMax)
		next = time.Now().Add(retry)
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// concerns reports whether a message may be about something that reconcile would change.
func (i *Interfaces) concerns(m syscall.NetlinkMessage) bool {
	if m.Header.Pid == i.links.rt.port {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	known := func(index int) bool {
		return slices.ContainsFunc(i.states, func(s datapath.InterfaceState) bool { return s.IfIndex == index })
	}
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		index, mac := linkOf(m)
		return known(index) || slices.ContainsFunc(i.want, func(w datapath.Interface) bool { return bytes.Equal(w.MAC, mac) })
	case unix.RTM_DELRULE:
		return isOurRule(m)
	case unix.RTM_DELROUTE:
		return isOurTable(m)
	case unix.RTM_DELADDR:
		return len(m.Data) >= unix.SizeofIfAddrmsg && known(int(binary.NativeEndian.Uint32(m.Data[4:])))
	}
	return false
}
