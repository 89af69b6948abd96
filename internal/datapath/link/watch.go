package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watchDebounce is how long a burst of foreign changes may last before it is reported.
const watchDebounce = 100 * time.Millisecond

// watchGroups are the rtnetlink multicast groups that Watch listens to.
var watchGroups = []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}

// Watch calls changed, with a reason for the log, whenever another process removed or set down
// something that SetNode or EnsureEndpoint had made: network managers are known to flush routes
// that they did not make. The caller answers by repeating SetNode and EnsureEndpoint for all
// endpoints. A burst of changes is one call. Watch returns nil when ctx ends.
//
// Changes of nftables and kernel parameters are not seen; a caller that repeats SetNode from time
// to time repairs those too.
func (l *Links) Watch(ctx context.Context, changed func(reason string)) error {
	w, err := l.listen(ctx, watchGroups...)
	if err != nil {
		return fmt.Errorf("watch the node's network: %w", err)
	}
	defer w.close()
	reason, wait := "", forever
	for {
		got, err := w.next(wait)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			reason, wait = "messages of the kernel were lost", watchDebounce
			continue
		case err != nil:
			return fmt.Errorf("watch the node's network: %w", err)
		case got == nil && reason != "": // the burst is over
			changed(reason)
			reason, wait = "", forever
			continue
		}
		for _, m := range got {
			if r := l.foreign(m); r != "" && reason == "" {
				reason, wait = r, watchDebounce
			}
		}
	}
}

// forever has listener.next wait until there is something.
const forever = time.Duration(-1)

// listener receives notifications of the kernel about changes of the network.
type listener struct {
	ctx  context.Context
	c    *conn
	pipe [2]int // the end of ctx interrupts the wait for messages
	stop func()
}

// listen joins rtnetlink multicast groups in the node's namespace.
func (l *Links) listen(ctx context.Context, groups ...int) (*listener, error) {
	w := &listener{ctx: ctx}
	if err := l.inNS(func() (err error) { w.c, err = newConn(); return err }); err != nil {
		return nil, err
	}
	for _, group := range groups {
		if err := unix.SetsockoptInt(w.c.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			w.c.close()
			return nil, fmt.Errorf("join group %d: %w", group, err)
		}
	}
	if err := unix.Pipe2(w.pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		w.c.close()
		return nil, err
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { unix.Write(w.pipe[1], []byte{0}); close(stopped) })
	w.stop = func() {
		if !stop() {
			<-stopped
		}
	}
	return w, nil
}

func (w *listener) close() {
	w.stop()
	unix.Close(w.pipe[0])
	unix.Close(w.pipe[1])
	w.c.close()
}

// next returns the messages that come next, none after wait without any or when ctx ends. It
// returns ENOBUFS when messages were lost.
func (w *listener) next(wait time.Duration) ([]syscall.NetlinkMessage, error) {
	for {
		ms := -1
		if wait >= 0 {
			ms = int((wait + time.Millisecond - 1) / time.Millisecond)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.c.fd), Events: unix.POLLIN}, {Fd: int32(w.pipe[0]), Events: unix.POLLIN}}, ms)
		switch {
		case w.ctx.Err() != nil:
			return nil, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return nil, nil
		}
		got, _, err := unix.Recvfrom(w.c.fd, w.c.buf, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.ENOBUFS) {
			return nil, err
		}
		if err != nil {
			continue
		}
		if msgs, err := syscall.ParseNetlinkMessage(w.c.buf[:got]); err == nil && len(msgs) > 0 {
			return msgs, nil
		}
	}
}

// foreign returns what of ours was removed according to a message, or "".
func (l *Links) foreign(m syscall.NetlinkMessage) string {
	if slices.Contains([]uint32{l.rt.port, l.rm.port}, m.Header.Pid) {
		return "" // our own doing; what goes through the other handle is reported, to no harm
	}
	switch m.Header.Type {
	case unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg || m.Data[5] != RouteProtocol {
			return ""
		}
		attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
		if err != nil {
			return ""
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.RTA_OIF && len(a.Value) >= 4 && !l.lives(int(binary.NativeEndian.Uint32(a.Value))) {
				return "" // it went with its interface
			}
		}
		return "a route was removed"
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg {
			return ""
		}
		info := nl.DeserializeIfInfomsg(m.Data)
		if m.Header.Type == unix.RTM_NEWLINK && (info.Flags&unix.IFF_UP != 0 || info.Change&unix.IFF_UP == 0) {
			return ""
		}
		attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			return ""
		}
		for _, a := range attrs {
			if a.Attr.Type != unix.IFLA_IFNAME {
				continue
			}
			name := nl.BytesToString(a.Value)
			ours := name == HostDevice || name == NetDevice || name == TunnelDevice
			switch {
			case ours && m.Header.Type == unix.RTM_DELLINK:
				return "device " + name + " was removed"
			case m.Header.Type == unix.RTM_NEWLINK && (ours || strings.HasPrefix(name, EndpointPrefix) && l.wasRaised(int(info.Index)) && l.lives(int(info.Index))) && l.isDown(int(info.Index)):
				return "device " + name + " was shut down"
			}
		}
	case unix.RTM_DELADDR:
		if len(m.Data) < unix.SizeofIfAddrmsg {
			return ""
		}
		link, err := l.h.LinkByIndex(int(binary.NativeEndian.Uint32(m.Data[4:])))
		if err == nil && link.Attrs().Name == HostDevice {
			return "an address of " + HostDevice + " was removed"
		}
	}
	return ""
}

// isDown reports whether an interface is down now: a message can be older than what was done since.
func (l *Links) isDown(index int) bool {
	link, err := l.h.LinkByIndex(index)
	return err == nil && link.Attrs().Flags&net.FlagUp == 0
}

// wasRaised reports whether EnsureEndpoint has brought an interface up. One that is only being
// made, by the plugin, is down by right.
func (l *Links) wasRaised(index int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.raised[index]
}

// lives reports whether an interface exists and is not waiting for removal.
func (l *Links) lives(index int) bool {
	l.mu.Lock()
	_, doomed := l.doomed[index]
	l.mu.Unlock()
	if doomed {
		return false
	}
	link, err := l.h.LinkByIndex(index)
	return err == nil && link.Attrs().Group != RemovalGroup || err != nil && !errors.As(err, &netlink.LinkNotFoundError{})
}
