package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// WatchFilters calls lost with the index of every interface from whose hooks another process
// removed filters, or changed ours, as soon as the kernel notifies: until the caller has restored
// them, nothing is filtered there. It calls lost with 0, which is for all interfaces, when it
// begins, when messages were lost, and after every period, for what was not notified. It returns
// nil when ctx ends.
//
// It has a socket of its own, so that nothing else is in front of these messages.
func (l *Links) WatchFilters(ctx context.Context, period time.Duration, lost func(ifIndex int)) error {
	w, err := l.listen(ctx, unix.RTNLGRP_TC)
	if err != nil {
		return fmt.Errorf("watch the filters: %w", err)
	}
	defer w.close()
	lost(0)
	all := time.Now().Add(period)
	for {
		got, err := w.next(max(0, time.Until(all)))
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS) || time.Now().After(all):
			lost(0)
			all = time.Now().Add(period)
		case err != nil:
			return fmt.Errorf("watch the filters: %w", err)
		}
		reported := map[int]bool{}
		for _, m := range got {
			if index := l.lostFilter(m); index != 0 && !reported[index] {
				reported[index] = true
				lost(index)
			}
		}
	}
}

// lostFilter returns the interface at whose hooks, according to a message, another process removed
// filters or changed ours; 0 if the message is about anything else.
func (l *Links) lostFilter(m syscall.NetlinkMessage) int {
	const sizeofTcMsg = 20 // struct tcmsg: family, padding, ifindex, handle, parent, info
	if m.Header.Pid == l.rt.port || len(m.Data) < sizeofTcMsg {
		return 0
	}
	index := int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
	parent := binary.NativeEndian.Uint32(m.Data[12:])
	priority := binary.NativeEndian.Uint32(m.Data[16:]) >> 16
	ours := parent == netlink.HANDLE_MIN_INGRESS || parent == netlink.HANDLE_MIN_EGRESS
	switch {
	case m.Header.Type == unix.RTM_DELQDISC && parent == netlink.HANDLE_CLSACT:
	case m.Header.Type == unix.RTM_DELTFILTER && ours && priority <= filterPriority: // 0 is for all
	case m.Header.Type == unix.RTM_NEWTFILTER && ours && priority == filterPriority:
	default:
		return 0
	}
	return index
}
