package loader

import (
	"errors"
	"fmt"
	stdmaps "maps"
	"net"
	"slices"

	"golang.org/x/sys/unix"
)

// The interfaces that a cloud attaches to the node connect the nodes as the native device does:
// each has the same programs. The programs trust packets that come by one as they trust those of
// the native device for as long as it has a row, which it gets after its programs and loses before
// them. The rows stay when an agent ends, and say to the next one where programs are.

// AttachInterface puts the programs on an interface that joins the nodes, and has what comes by it
// believed from then on. The interface should be down until it returns nil. It is idempotent.
func (l *Loader) AttachInterface(ifIndex int, mac net.HardwareAddr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cfg.Interfaces {
		return fmt.Errorf("attach programs to interface %d: the programs know of no interfaces besides the native device", ifIndex)
	}
	if _, err := l.attachHooks(0, l.joiningHooks(ifIndex)...); err != nil {
		return err
	}
	if ifIndex == l.cfg.NativeIfIndex {
		return nil
	}
	exit, err := l.filters.FilterProgram(ifIndex, false)
	if err != nil {
		return fmt.Errorf("look for %s on interface %d: %w", ToNetdev, ifIndex, err)
	}
	if exit == 0 {
		return fmt.Errorf("interface %d waits until the programs of an earlier agent are replaced: until then nothing would filter what leaves by it", ifIndex)
	}
	if err := l.maps.UpsertInterface(ifIndex, mac); err != nil {
		return err
	}
	delete(l.bare, ifIndex)
	return nil
}

// DetachInterface stops trusting the packets of an interface. Its programs stay, and treat it as an
// interface outside of the cluster; they go with the interface or with ForgetInterface.
func (l *Loader) DetachInterface(ifIndex int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.maps.DeleteInterface(ifIndex); err != nil || ifIndex == l.cfg.NativeIfIndex {
		return err
	}
	l.bare[ifIndex] = true
	return nil
}

// ForgetInterface has nothing believed any more of what comes by an interface, and takes the
// programs off: it is none of the cloud's. That it is gone is no error.
func (l *Loader) ForgetInterface(ifIndex int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.forgetInterface(ifIndex)
}

func (l *Loader) forgetInterface(ifIndex int) error {
	if err := l.maps.DeleteInterface(ifIndex); err != nil {
		return err
	}
	if ifIndex != l.cfg.NativeIfIndex { // which has them for itself
		l.bare[ifIndex] = true // its row is gone
		if err := l.filters.RemoveFiltersOn(ifIndex, FromNetdev, ToNetdev); err != nil {
			return err
		}
	}
	delete(l.bare, ifIndex)
	return nil
}

// Interfaces lists the interfaces besides the native device that have rows, also those of an agent
// before this one, and those that have lost theirs but maybe not their programs.
func (l *Loader) Interfaces() ([]int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.interfaces()
}

func (l *Loader) interfaces() ([]int, error) {
	all, err := l.maps.Interfaces()
	all = slices.AppendSeq(all, stdmaps.Keys(l.bare))
	slices.Sort(all)
	return slices.Compact(all), err
}

// joiningHooks are those of an interface that joins the nodes. What leaves is evaluated first: see
// attachExit for when it is not.
func (l *Loader) joiningHooks(ifIndex int) []deviceHook {
	hooks := []deviceHook{{ifIndex: ifIndex, name: ToNetdev}, {ifIndex: ifIndex, ingress: true, name: FromNetdev}}
	if l.keeping {
		return hooks[1:]
	}
	return hooks
}

// attachInterfaces puts the programs where they are not yet on the interfaces that have rows, or on
// one of them. One that is gone loses its row.
func (l *Loader) attachInterfaces(only int) (attached int, err error) {
	all, err := l.maps.Interfaces()
	if err != nil {
		return 0, err
	}
	slices.Sort(all)
	var errs []error
	for _, ifIndex := range all {
		if only != 0 && ifIndex != only {
			continue
		}
		n, err := l.attachHooks(0, l.joiningHooks(ifIndex)...)
		attached += n
		if errors.Is(err, unix.ENODEV) {
			err = l.maps.DeleteInterface(ifIndex)
		}
		errs = append(errs, err)
	}
	return attached, errors.Join(errs...)
}

// forgetInterfaces removes rows and programs if no interfaces of a cloud are configured: an agent
// before this one had some.
func (l *Loader) forgetInterfaces() error {
	if l.cfg.Interfaces {
		return nil
	}
	all, err := l.interfaces()
	errs := []error{err}
	for _, ifIndex := range all {
		errs = append(errs, l.forgetInterface(ifIndex))
	}
	return errors.Join(errs...)
}
