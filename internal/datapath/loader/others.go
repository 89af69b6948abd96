package loader

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cilium/ebpf"
)

// KeepOthers looks whether interfaces have programs that work on other maps than the Loader's own:
// those of an agent with another layout, or of one whose pins were removed. If any has, such
// programs stay where they are, whatever Configure and AttachEndpoint are asked for, until
// ReplaceOthers: they go on by what they know, and the new maps can be filled first. It is for the
// time before the first Configure, with the interfaces of pods; one that is gone is no error.
func (l *Loader) KeepOthers(ifIndexes []int) (kept bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range ifIndexes {
		for _, hook := range podHooks() {
			other, err := l.hasOther(i, hook.ingress, hook.name)
			if err != nil {
				return false, err
			}
			l.keeping = l.keeping || other
		}
	}
	return l.keeping, nil
}

// ReplaceOthers puts the Loader's programs in the place of those that KeepOthers kept, each in one
// step, and removes what is pinned of them. It is for the time when the maps hold everything. After
// an error it is to be called again.
func (l *Loader) ReplaceOthers() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.keeping {
		return nil
	}
	l.keeping = false
	err := l.attachAll(true)
	l.keeping = err != nil
	return err
}

// podHook is a hook of a pod's interface and what belongs there.
type podHook struct {
	ingress bool
	name    string
}

func podHooks() []podHook { return []podHook{{true, FromPod}, {false, ToPod}} }

// programOn is a program of the kernel and the name that it would have were it this product's.
type programOn struct {
	id   int
	name string
}

// hasOther reports whether the program on a hook is one of this product that works on other maps
// than the Loader's. Results are cached: the interfaces of all pods share programs, and the kernel
// does not reuse program IDs soon.
func (l *Loader) hasOther(ifIndex int, ingress bool, name string) (bool, error) {
	id, err := l.filters.FilterProgram(ifIndex, ingress)
	if err != nil {
		return false, fmt.Errorf("look for %s on interface %d: %w", name, ifIndex, err)
	}
	if id == 0 || id == l.ids[name] {
		return false, nil
	}
	on := programOn{id, name}
	other, known := l.others[on]
	if !known {
		if other, err = l.isOther(on); err != nil {
			return false, err
		}
		l.others[on] = other
	}
	return other, nil
}

func (l *Loader) isOther(on programOn) (bool, error) {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(on.id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // it has just been replaced, or removed
	}
	if err != nil {
		return false, fmt.Errorf("open program %d: %w", on.id, err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return false, fmt.Errorf("identify program %d: %w", on.id, err)
	}
	if info.Name != on.name {
		return false, nil
	}
	own, err := l.maps.IDs()
	if err != nil {
		return false, err
	}
	used, _ := info.MapIDs()
	return !slices.ContainsFunc(used, func(id ebpf.MapID) bool { return slices.Contains(own, id) }), nil
}

// keeps reports whether a hook of an interface has a program that is to stay for now.
func (l *Loader) keeps(ifIndex int, ingress bool, name string) (bool, error) {
	if !l.keeping {
		return false, nil
	}
	return l.hasOther(ifIndex, ingress, name)
}

// foreignProgram returns what a program is called that is none of this product's, or nothing.
func foreignProgram(id int) (string, error) {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // it has just been replaced, or removed
	}
	if err != nil {
		return "", fmt.Errorf("open program %d: %w", id, err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", fmt.Errorf("identify program %d: %w", id, err)
	}
	if slices.Contains(programNames(objects()), info.Name) {
		return "", nil
	}
	return cmp.Or(info.Name, "without a name"), nil
}
