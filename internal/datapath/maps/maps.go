package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// layout names the directory of the pinned maps. It changes with the layout of any key or value,
// and then the agent fills new maps from its tables before it replaces the programs (see
// loader.KeepOthers); flows are evaluated again. It also changes when a map is added: an older
// agent would leave the map as it is, and write others by which the next newer one must not judge
// it. So after a rollback each agent finds maps that only agents wrote that know all of them.
const (
	layoutPrefix = "maps-"
	layout       = layoutPrefix + "v10"
)

// Maps is the set of maps of one node.
type Maps struct {
	dir  string
	maps map[string]*ebpf.Map

	mu sync.Mutex // serialises writers of several maps, and guards the next three fields
	// ruleSets is what the policy map holds, so that a change writes only what differs.
	ruleSets map[datapath.RuleSetID]*ruleSetState
	entries  int // in all of ruleSets
	setMax   int // entries that one of them may have; 0 if no writer

	// servicesMu does the same for the tables of services: who reads all of them does not hold up
	// writers of policy and endpoints.
	servicesMu sync.Mutex
	// services is what the tables of services hold, by frontend.
	services map[datapath.ServiceFrontend]serviceState
	lastSet  uint32 // the set of backends made last
}

var (
	_ datapath.Maps     = (*Maps)(nil)
	_ datapath.Services = (*Maps)(nil)
)

// Open makes the maps, or takes over those pinned in cfg.Dir, and reads what they hold. The caller
// must Close it; pinned maps stay in the kernel. Besides the one process that writes, others of
// the same build may open pinned maps to list them; see openMap for those of another one.
func Open(cfg Config) (*Maps, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("maps: %w", err)
	}
	spec, err := loadKernel()
	if err != nil {
		return nil, fmt.Errorf("maps: read the built-in specification: %w", err)
	}
	m := &Maps{dir: cfg.Dir, maps: make(map[string]*ebpf.Map), setMax: cfg.ruleSetMax()}
	if cfg.Dir != "" {
		if err := mountBPF(cfg.Dir); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Join(cfg.Dir, layout), 0o700); err != nil {
			return nil, fmt.Errorf("maps: make the pin directory: %w", err)
		}
	}
	sizes := cfg.entries()
	for _, name := range mapNames() {
		ms := spec.Maps[name]
		n, configured := sizes[name]
		if configured {
			ms.MaxEntries = uint32(n)
		}
		km, err := m.openMap(ms, configured)
		if err != nil {
			m.Close()
			return nil, err
		}
		m.maps[name] = km
	}
	if err := m.load(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Close gives the maps' file descriptors back. Pinned maps stay in the kernel.
func (m *Maps) Close() error {
	var errs []error
	for _, km := range m.maps {
		errs = append(errs, km.Close())
	}
	return errors.Join(errs...)
}

// RemoveStale removes the pins of maps of other layouts. It is for the time when no program uses
// them any more.
func (m *Maps) RemoveStale() error {
	if m.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return fmt.Errorf("maps: list the pin directory: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), layoutPrefix) && e.Name() != layout {
			errs = append(errs, os.RemoveAll(filepath.Join(m.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Dir returns the pin directory, empty if nothing is pinned.
func (m *Maps) Dir() string { return m.dir }

// Replacements returns the maps by name, for programs that refer to them. They stay owned by m.
func (m *Maps) Replacements() map[string]*ebpf.Map {
	return maps.Clone(m.maps)
}

// IDs returns the kernel's numbers of the maps, in no order.
func (m *Maps) IDs() ([]ebpf.MapID, error) {
	ids := make([]ebpf.MapID, 0, len(m.maps))
	for name, km := range m.maps {
		info, err := km.Info()
		if err != nil {
			return nil, fmt.Errorf("maps: identify %q: %w", name, err)
		}
		id, ok := info.ID()
		if !ok {
			return nil, fmt.Errorf("maps: the kernel does not number maps: %w", datapath.ErrUnsupported)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func mapNames() []string {
	return []string{
		kernelMapEndpoints, kernelMapAddresses, kernelMapRuleSets, kernelMapPolicy,
		kernelMapIpcache, kernelMapIpcachePrefix, kernelMapTunnelPeers, kernelMapInterfaces, kernelMapBlocks, kernelMapUnknownIdentities, kernelMapLbServices, kernelMapLbSlots,
		kernelMapLbMembers, kernelMapLbRanges, kernelMapLbTables, kernelMapLbRejects, kernelMapLbAffinity, kernelMapLbSockets, kernelMapCt,
		kernelMapCtAccounts, kernelMapCtExcess, kernelMapMasquerade, kernelMapMasqueradeAccounts, kernelMapFragments,
		kernelMapMetrics, kernelMapMonitor,
		kernelMapEventsDrop, kernelMapEventsVerdict, kernelMapEventsTrace, kernelMapEventsLost, kernelMapEventShares,
	}
}

// openMap takes over a pinned map or makes it. A pinned map of another size is used as it is if
// the size is configured: its content is worth more. One whose size the programs decide, such as
// a counter for each reason, is made anew: what they know besides would have no place in it.
func (m *Maps) openMap(spec *ebpf.MapSpec, configured bool) (*ebpf.Map, error) {
	if m.dir == "" {
		km, err := ebpf.NewMap(spec)
		if err != nil {
			return nil, fmt.Errorf("maps: make %q: %w", spec.Name, classify(err))
		}
		return km, nil
	}
	path := filepath.Join(m.dir, layout, spec.Name)
	km, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case err == nil:
		sized := spec.Copy()
		sized.MaxEntries = km.MaxEntries()
		if err := sized.Compatible(km); err != nil {
			km.Close()
			return nil, fmt.Errorf("maps: %s was made by another build; stop the agent, remove %s and start it again: %w", path, m.dir, err)
		}
		if configured || km.MaxEntries() == spec.MaxEntries {
			return km, nil
		}
		km.Close()
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("maps: remove %s, which another build made with another size: %w", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("maps: open %s: %w", path, err)
	}
	km, err = ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("maps: make %q: %w", spec.Name, classify(err))
	}
	if err := km.Pin(path); err != nil {
		km.Close()
		return nil, fmt.Errorf("maps: pin %s: %w", path, err)
	}
	return km, nil
}

// bpfMagic is BPF_FS_MAGIC of include/uapi/linux/magic.h.
const bpfMagic = 0xcafe4a11

// mountBPF makes dir exist on a BPF file system, mounting one on dir itself if there is none.
func mountBPF(dir string) error {
	// The nearest parent that exists is on the file system that dir would be made on.
	for at := dir; ; at = filepath.Dir(at) {
		var st unix.Statfs_t
		err := unix.Statfs(at, &st)
		if err == nil {
			if uint32(st.Type) == bpfMagic {
				return os.MkdirAll(dir, 0o700)
			}
			break
		}
		if !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("maps: look at the file system of %s: %w", at, err)
		}
	}
	// The usual mount point exists as soon as the kernel knows BPF: mount there if dir is below.
	target := dir
	if rel, err := filepath.Rel("/sys/fs/bpf", dir); err == nil && filepath.IsLocal(rel) {
		target = "/sys/fs/bpf"
	}
	if err := os.MkdirAll(target, 0o700); err != nil {
		return fmt.Errorf("maps: make the mount point: %w", err)
	}
	if err := unix.Mount("bpf", target, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("maps: mount a BPF file system on %s: %w", target, err)
	}
	return os.MkdirAll(dir, 0o700)
}

// classify turns the kernel's error numbers into the errors of package datapath.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: %w", datapath.ErrFull, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: %w", datapath.ErrUnsupported, err)
	}
	return err
}
