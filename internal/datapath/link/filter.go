package link

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath/link/netdump"
)

// Where our filters are: first of all, at a handle of their own.
const (
	filterPriority = 1
	filterHandle   = 1
)

func hook(ingress bool) (parent uint32, name string) {
	if ingress {
		return netlink.HANDLE_MIN_INGRESS, "ingress"
	}
	return netlink.HANDLE_MIN_EGRESS, "egress"
}

// ReplaceFilter puts the classifier program progFD on the ingress or egress hook of an interface as
// a direct-action filter for all protocols, and creates the hooks (clsact) if there are none. A
// program that is there is replaced in one step: no packet sees the hook empty. name is what tc
// shows. The kernel takes its own reference to the program; the caller keeps progFD.
//
// Filters hang on the interface and go with it; only RemoveFilters removes them. If the interface
// is the tunnel device, which SetNode leaves down for as long as no program filters what it
// receives, it is brought up after its ingress program is in place.
func (l *Links) ReplaceFilter(ifIndex int, ingress bool, progFD int, name string) error {
	parent, side := hook(ingress)
	// Without NLM_F_EXCL the same is no error, and another kind is.
	qdisc := newRequest(fmt.Sprintf("create hooks of interface %d", ifIndex), unix.RTM_NEWQDISC, unix.NLM_F_CREATE)
	qdisc.AddData(&nl.TcMsg{
		Family:  nl.FAMILY_ALL,
		Ifindex: int32(ifIndex),
		Handle:  netlink.MakeHandle(0xffff, 0),
		Parent:  netlink.HANDLE_CLSACT,
	})
	qdisc.attr(nl.TCA_KIND, nl.ZeroTerminated("clsact"))

	filter := newRequest(fmt.Sprintf("put program %s on %s of interface %d", name, side, ifIndex),
		unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	filter.AddData(&nl.TcMsg{
		Family:  nl.FAMILY_ALL,
		Ifindex: int32(ifIndex),
		Handle:  filterHandle,
		Parent:  parent,
		Info:    netlink.MakeHandle(filterPriority, nl.Swap16(unix.ETH_P_ALL)),
	})
	filter.attr(nl.TCA_KIND, nl.ZeroTerminated("bpf"))
	opts := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	opts.AddRtAttr(nl.TCA_BPF_FD, nl.Uint32Attr(uint32(progFD)))
	opts.AddRtAttr(nl.TCA_BPF_NAME, nl.ZeroTerminated(name))
	opts.AddRtAttr(nl.TCA_BPF_FLAGS, nl.Uint32Attr(nl.TCA_BPF_FLAG_ACT_DIRECT))
	filter.AddData(opts)

	// One after the other: a qdisc "ingress" takes filters for both hooks, and asks them all about
	// what comes in.
	err := errors.Join(l.rt.run(qdisc)...)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("another qdisc than clsact is at the hooks; remove it (tc qdisc del dev %s ingress): %w", l.nameOf(ifIndex), err)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(l.rt.run(filter)...); err != nil {
		return err
	}
	if !ingress {
		return nil
	}
	l.mu.Lock()
	waiting := l.tunnelWaiting == ifIndex
	l.mu.Unlock()
	if !waiting {
		return nil
	}
	if err := errors.Join(l.rt.run(linkUp(ifIndex))...); err != nil {
		return fmt.Errorf("tunnel device: %w", err)
	}
	l.mu.Lock()
	l.tunnelWaiting = 0
	l.mu.Unlock()
	return nil
}

// nameOf returns the name of an interface for an error, or its index.
func (l *Links) nameOf(ifIndex int) string {
	link, err := l.h.LinkByIndex(ifIndex)
	if err != nil {
		return fmt.Sprint(ifIndex)
	}
	return link.Attrs().Name
}

// FilterProgram returns the kernel's number of the program that ReplaceFilter put on the hook, 0 if
// there is none.
func (l *Links) FilterProgram(ifIndex int, ingress bool) (progID int, err error) {
	filter, err := l.filterOn(ifIndex, ingress)
	if filter == nil {
		return 0, err
	}
	return filter.Id, nil
}

// filterOn returns the filter on the hook that is where ReplaceFilter puts one; nil if there is
// none.
func (l *Links) filterOn(ifIndex int, ingress bool) (*netlink.BpfFilter, error) {
	parent, side := hook(ingress)
	filters, err := l.listFilters(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: ifIndex}}, parent)
	if errors.Is(err, unix.EINVAL) {
		return nil, nil // no hooks on this interface
	}
	if err != nil {
		return nil, fmt.Errorf("list %s filters of interface %d: %w", side, ifIndex, err)
	}
	for _, f := range filters {
		bpf, ok := f.(*netlink.BpfFilter)
		if ok && bpf.Priority == filterPriority && bpf.Handle == filterHandle {
			return bpf, nil
		}
	}
	return nil, nil
}

// RemoveFilters takes away the filters of these names that ReplaceFilter put on interfaces which
// stay when the product goes, such as the node's own device. The hooks stay: others may use them,
// and they cost nothing.
func (l *Links) RemoveFilters(names ...string) error { return l.RemoveFiltersBut(nil, names...) }

// RemoveFiltersBut is RemoveFilters for all interfaces but some.
func (l *Links) RemoveFiltersBut(on []int, names ...string) error {
	all, err := l.listLinks()
	if err != nil {
		return err
	}
	var errs []error
	for _, link := range all {
		if !slices.Contains(on, link.Attrs().Index) {
			errs = append(errs, l.removeFilters(link, names))
		}
	}
	return errors.Join(errs...)
}

// RemoveFiltersOn is RemoveFilters for one interface; that it is gone is no error.
func (l *Links) RemoveFiltersOn(ifIndex int, names ...string) error {
	link, err := l.h.LinkByIndex(ifIndex)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for interface %d: %w", ifIndex, err)
	}
	return l.removeFilters(link, names)
}

func (l *Links) listFilters(link netlink.Link, parent uint32) ([]netlink.Filter, error) {
	return netdump.List(func() ([]netlink.Filter, error) { return l.h.FilterList(link, parent) })
}

func (l *Links) removeFilters(link netlink.Link, names []string) error {
	var errs []error
	for _, ingress := range []bool{true, false} {
		parent, side := hook(ingress)
		filters, err := l.listFilters(link, parent)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) {
			continue // no hooks on this interface, or it has just gone
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("list %s filters of interface %s: %w", side, link.Attrs().Name, err))
			continue
		}
		for _, f := range filters {
			bpf, ok := f.(*netlink.BpfFilter)
			if !ok || bpf.Priority != filterPriority || bpf.Handle != filterHandle || !slices.Contains(names, bpf.Name) {
				continue
			}
			if err := l.h.FilterDel(bpf); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("take %s off %s of %s: %w", bpf.Name, side, link.Attrs().Name, err))
			}
		}
	}
	return errors.Join(errs...)
}
