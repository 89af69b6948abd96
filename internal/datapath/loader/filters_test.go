package loader_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tcFilters is the smallest Filters on the real kernel. It counts what it replaced.
type tcFilters struct {
	h *netlink.Handle

	mu       sync.Mutex
	replaced int
}

func side(ingress bool) uint32 {
	if ingress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// clsact makes the hooks of an interface if there are none.
func (f *tcFilters) clsact(ifIndex int) error {
	err := f.h.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifIndex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("clsact: %w", err)
	}
	return nil
}

func (f *tcFilters) ReplaceFilter(ifIndex int, ingress bool, progFD int, name string) error {
	if err := f.clsact(ifIndex); err != nil {
		return err
	}
	err := f.h.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifIndex, Parent: side(ingress), Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Fd: progFD, Name: name, DirectAction: true,
	})
	if err == nil {
		f.mu.Lock()
		f.replaced++
		f.mu.Unlock()
	}
	return err
}

func (f *tcFilters) RemoveFiltersOn(ifIndex int, names ...string) error {
	for _, ingress := range []bool{true, false} {
		list, err := f.h.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: ifIndex}}, side(ingress))
		if err != nil {
			continue // it is gone
		}
		for _, filter := range list {
			if bpf, ok := filter.(*netlink.BpfFilter); ok && slices.Contains(names, bpf.Name) {
				if err := f.h.FilterDel(bpf); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (f *tcFilters) FilterProgram(ifIndex int, ingress bool) (int, error) {
	list, err := f.h.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: ifIndex}}, side(ingress))
	if errors.Is(err, unix.EINVAL) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, l := range list {
		if b, ok := l.(*netlink.BpfFilter); ok && b.Priority == 1 {
			return b.Id, nil
		}
	}
	return 0, nil
}
