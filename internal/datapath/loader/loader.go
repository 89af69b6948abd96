package loader

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	stdmaps "maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
)

// Names of the programs, of their objects' only function and of their filters.
const (
	FromPod     = "from_pod"
	ToPod       = "to_pod"
	FromOverlay = "from_overlay"
	FromHost    = "from_host"
	FromNetdev  = "from_netdev"
	ToNetdev    = "to_netdev"
	FromDevice  = "from_device"
	ToDevice    = "to_device"
	// sock is the object of the hooks of a cgroup; its programs are named in cgroup.go.
	sock = "sock"
)

// Filters puts programs on interfaces. Package datapath/link implements it.
type Filters interface {
	// ReplaceFilter puts a program on a hook of an interface, in place of the one that is there if
	// there is one, in one step. The implementation does not keep progFD.
	ReplaceFilter(ifIndex int, ingress bool, progFD int, name string) error
	// FilterProgram returns the kernel's number of the program on a hook, 0 if there is none.
	FilterProgram(ifIndex int, ingress bool) (progID int, err error)
	// RemoveFiltersOn takes the programs of these names off the hooks of an interface, which may be
	// gone.
	RemoveFiltersOn(ifIndex int, names ...string) error
}

// Loader keeps one node's programs.
type Loader struct {
	maps    *maps.Maps
	filters Filters
	log     *slog.Logger

	mu       sync.Mutex
	digest   string // of the programs below; empty before the first Configure
	programs map[string]*ebpf.Program
	ids      map[string]int
	hooks    map[string]link.Link // of the cgroup, if nothing is pinned
	cfg      datapath.Config      // of the last Configure
	keeping  bool                 // programs of other maps stay until ReplaceOthers
	others   map[programOn]bool   // whether these work on other maps
	bare     map[int]bool         // interfaces that have lost their rows, but maybe not their programs
	missing  map[int]string       // why devices of others(cfg) lack programs, as it was logged
}

var _ datapath.Programs = (*Loader)(nil)

// New returns a Loader that has loaded nothing yet: see Configure. m stays the caller's and must
// outlive the Loader; the programs are pinned next to its maps, or not at all if these are not
// pinned.
func New(m *maps.Maps, f Filters, log *slog.Logger) *Loader {
	return &Loader{maps: m, filters: f, log: log, others: make(map[programOn]bool), bare: make(map[int]bool), missing: make(map[int]string)}
}

// Close gives the programs' file descriptors back. What is pinned or attached stays in the kernel.
func (l *Loader) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := []error{closeAll(l.programs)}
	for _, hook := range l.hooks {
		errs = append(errs, hook.Close())
	}
	return errors.Join(errs...)
}

func closeAll(programs map[string]*ebpf.Program) error {
	var errs []error
	for _, p := range programs {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Program returns a loaded program by name, nil before Configure. It stays owned by the Loader.
func (l *Loader) Program(name string) *ebpf.Program {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.programs[name]
}

// Configure implements datapath.Programs. If the programs change, it also puts the new ones on the
// interface of every endpoint that has a row, so that after it returns nothing runs the old ones
// but interfaces that failed, which the error names, devices that cfg no longer names, and what
// KeepOthers keeps.
func (l *Loader) Configure(cfg datapath.Config) error {
	rodata, err := settings(cfg)
	if err != nil {
		return err
	}
	rodata.FragmentBits, rodata.FragmentNodeBits = l.maps.FragmentPlaces()
	rodata.MasqueradeShare = l.maps.MasqueradeShare()
	used := objectsFor(cfg)
	digest, err := l.digestOf(used, rodata)
	if err != nil {
		return err
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := digest != l.digest
	if fresh {
		programs, ids, err := l.obtain(used, rodata, digest)
		if err != nil {
			return err
		}
		old := l.programs
		l.programs, l.ids, l.digest = programs, ids, digest
		closeAll(old) // the filters hold references of their own
	}
	l.cfg = cfg
	if err := l.forgetInterfaces(); err != nil {
		return err
	}
	return l.attachAll(fresh)
}

// attachAll puts the programs where they are not yet, on the endpoints' interfaces if so asked, and
// removes what is pinned of others if nothing runs them any more.
func (l *Loader) attachAll(endpoints bool) error {
	l.attachOthers(0)
	_, err := l.attachHooks(0, entries(l.cfg)...)
	_, ierr := l.attachInterfaces(0)
	errs := []error{err, ierr}
	if !l.keeping {
		errs = append(errs, l.attachCgroup(l.cfg.CgroupRoot)) // whose services are not known yet
	}
	if endpoints {
		errs = append(errs, l.attachEndpoints())
	}
	// Not while a pod has programs that do not mark what they pass: nothing of it would leave.
	if errors.Join(errs...) == nil {
		_, err = l.attachExit(0)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil || l.keeping {
		return err
	}
	if err := errors.Join(l.removeStale(), l.maps.RemoveStale()); err != nil {
		// Old pins cost memory, nothing else.
		l.log.Warn("Could not remove the pins of older programs and maps", "error", err)
	}
	return nil
}

// AttachEndpoint implements datapath.Programs. The program for what the pod sends comes last: until
// then the interface is down, and after it nothing passes unfiltered either way.
func (l *Loader) AttachEndpoint(ifIndex int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attachEndpoint(ifIndex)
}

func (l *Loader) attachEndpoint(ifIndex int) error {
	if err := l.attach(ifIndex, false, ToPod); err != nil {
		return err
	}
	return l.attach(ifIndex, true, FromPod)
}

// Attached implements datapath.Programs.
func (l *Loader) Attached(ifIndex int) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attached(ifIndex)
}

func (l *Loader) attached(ifIndex int) (bool, error) {
	for _, hook := range podHooks() {
		id, err := l.filters.FilterProgram(ifIndex, hook.ingress)
		if err != nil {
			return false, fmt.Errorf("look for %s on interface %d: %w", hook.name, ifIndex, err)
		}
		if kept, err := l.keeps(ifIndex, hook.ingress, hook.name); err != nil || kept {
			if err != nil {
				return false, err
			}
			continue
		}
		if id == 0 || id != l.ids[hook.name] {
			return false, nil
		}
	}
	return true, nil
}

func (l *Loader) attach(ifIndex int, ingress bool, name string) error {
	p := l.programs[name]
	if p == nil {
		return fmt.Errorf("attach %s to interface %d: the programs are not loaded yet", name, ifIndex)
	}
	if kept, err := l.keeps(ifIndex, ingress, name); err != nil || kept {
		return err
	}
	if err := l.filters.ReplaceFilter(ifIndex, ingress, p.FD(), name); err != nil {
		return fmt.Errorf("attach %s to interface %d: %w", name, ifIndex, err)
	}
	return nil
}

// deviceHook is a hook of one of the node's own devices and the program that belongs there.
type deviceHook struct {
	ifIndex int
	ingress bool
	name    string
	// yields means that an existing program of another owner stays.
	yields bool
}

// entries are the hooks by which packets come: from other nodes, from the node's own stack, from
// the network. Forged sources come by the last; without a tunnel it carries pods' packets as well.
func entries(cfg datapath.Config) []deviceHook {
	return []deviceHook{
		{ifIndex: cfg.TunnelIfIndex, ingress: true, name: FromOverlay},
		{ifIndex: cfg.HostIfIndex, name: FromHost},
		{ifIndex: cfg.NativeIfIndex, ingress: true, name: FromNetdev},
	}
}

// others are the hooks of a device outside of the cluster. Another program may have its own there,
// or remove the device: only clients outside are affected.
func others(ifIndex int) []deviceHook {
	return []deviceHook{
		{ifIndex: ifIndex, name: ToDevice, yields: true},
		{ifIndex: ifIndex, ingress: true, name: FromDevice, yields: true},
	}
}

// attachOthers attaches the programs to the devices outside of the cluster, or to one of them. A
// failure is logged when it changes: it does not affect the rest of the node.
func (l *Loader) attachOthers(only int) (attached int) {
	// These have the programs of the device that joins the nodes.
	joining, err := l.maps.Interfaces()
	if err != nil {
		l.log.Warn("Clients outside may not be load-balanced at devices", "error", err)
		return 0
	}
	stdmaps.DeleteFunc(l.missing, func(ifIndex int, _ string) bool { return !slices.Contains(l.cfg.OtherIfIndexes, ifIndex) })
	for _, ifIndex := range l.cfg.OtherIfIndexes {
		if only != 0 && ifIndex != only || slices.Contains(joining, ifIndex) {
			continue
		}
		n, err := l.attachHooks(0, others(ifIndex)...)
		attached += n
		if err == nil {
			delete(l.missing, ifIndex)
			continue
		}
		if text := err.Error(); l.missing[ifIndex] != text {
			l.missing[ifIndex] = text
			l.log.Warn("Clients outside are not load-balanced at a device", "ifindex", ifIndex, "error", err)
		}
	}
	return attached
}

// attachExit puts the program where packets leave the node, if it is not there yet. It comes after
// all others, and not while others' are kept: it drops what goes through the tunnel, or in a pod's
// name, unless they are of the same make.
func (l *Loader) attachExit(only int) (attached int, err error) {
	if l.keeping {
		return 0, nil
	}
	return l.attachHooks(only, deviceHook{ifIndex: l.cfg.NativeIfIndex, name: ToNetdev})
}

// attachHooks puts the node's own programs where they are not yet, on one device or on all with 0,
// and returns on how many hooks.
func (l *Loader) attachHooks(only int, hooks ...deviceHook) (attached int, err error) {
	var errs []error
	for _, d := range hooks {
		if d.ifIndex == 0 || only != 0 && d.ifIndex != only {
			continue
		}
		kept, err := l.keeps(d.ifIndex, d.ingress, d.name)
		id, theirs := 0, ""
		if err == nil && !kept {
			id, err = l.filters.FilterProgram(d.ifIndex, d.ingress)
		}
		if err == nil && d.yields && id != 0 && id != l.ids[d.name] {
			theirs, err = foreignProgram(id)
		}
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("look for %s on interface %d: %w", d.name, d.ifIndex, err))
		case kept, id == l.ids[d.name]:
		case theirs != "":
			errs = append(errs, fmt.Errorf("attach %s to interface %d: the foreign program %d (%s) is in its place, priority 1 and handle 1 of tc;"+
				" remove it if clients there are to find services", d.name, d.ifIndex, id, theirs))
		default:
			if err := l.attach(d.ifIndex, d.ingress, d.name); err != nil {
				errs = append(errs, err)
				continue
			}
			attached++
		}
	}
	return attached, errors.Join(errs...)
}

// ReattachNode reattaches programs that were detached from one of the node's own devices; with 0 to
// all of them, and to the cgroup. Another interface is not an error, nor is one that only affects
// clients outside. It returns how many hooks of devices it repaired.
func (l *Loader) ReattachNode(ifIndex int) (attached int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.digest == "" {
		return 0, nil
	}
	attached, err = l.attachHooks(ifIndex, entries(l.cfg)...)
	more, ierr := l.attachInterfaces(ifIndex)
	last, lerr := l.attachExit(ifIndex)
	attached, err = attached+more+last+l.attachOthers(ifIndex), errors.Join(err, ierr, lerr)
	if ifIndex == 0 && l.cfg.CgroupRoot != "" && !l.keeping {
		err = errors.Join(err, l.attachCgroup(l.cfg.CgroupRoot))
	}
	return attached, err
}

// attachEndpoints puts the programs on the interfaces of all endpoints, except those that are gone.
func (l *Loader) attachEndpoints() error {
	eps, err := l.maps.Endpoints()
	if err != nil {
		return fmt.Errorf("list endpoints to attach programs to: %w", err)
	}
	slices.SortFunc(eps, func(a, b datapath.Endpoint) int { return cmp.Compare(a.IfIndex, b.IfIndex) })
	var errs []error
	for _, ep := range eps {
		if ok, err := l.attached(ep.IfIndex); err == nil && ok {
			continue
		}
		err := l.attachEndpoint(ep.IfIndex)
		if errors.Is(err, unix.ENODEV) {
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// object is a built-in object file.
type object struct {
	name string
	elf  []byte
}

func objects() []object {
	return []object{
		{FromPod, _FromPodBytes},
		{ToPod, _ToPodBytes},
		{FromOverlay, _FromOverlayBytes},
		{FromHost, _FromHostBytes},
		{FromNetdev, _FromNetdevBytes},
		{ToNetdev, _ToNetdevBytes},
		{FromDevice, _FromDeviceBytes},
		{ToDevice, _ToDeviceBytes},
		{sock, _SockBytes},
	}
}

// objectsFor returns the objects that have a hook with these settings. The rest is not even
// verified, which is most of what a node's first start takes.
func objectsFor(cfg datapath.Config) []object {
	return slices.DeleteFunc(objects(), func(o object) bool {
		switch o.name {
		case FromOverlay:
			return cfg.TunnelIfIndex == 0
		case FromHost:
			return cfg.HostIfIndex == 0
		case FromNetdev, ToNetdev:
			return cfg.NativeIfIndex == 0
		case FromDevice, ToDevice:
			// The other devices are known when the cloud's interfaces are; until then nothing is
			// reloaded.
			return len(cfg.OtherIfIndexes) == 0 && !(cfg.Interfaces && cfg.NodePort)
		case sock:
			return cfg.CgroupRoot == ""
		}
		return false
	})
}

// programNames returns the names of all programs of the objects.
func programNames(objects []object) []string {
	var names []string
	for _, o := range objects {
		if o.name != sock {
			names = append(names, o.name)
			continue
		}
		for _, h := range cgroupHooks() {
			names = append(names, h.name)
		}
	}
	return names
}

// digestOf returns a digest of everything that the programs depend on.
func (l *Loader) digestOf(used []object, rodata fromPodConfig) (string, error) {
	sum := sha256.New()
	for _, o := range used {
		sum.Write(o.elf)
	}
	if err := binary.Write(sum, binary.NativeEndian, rodata); err != nil {
		return "", fmt.Errorf("digest of the settings: %w", err)
	}
	// A program is bound to the very maps it was loaded with.
	replacements := l.maps.Replacements()
	for _, name := range slices.Sorted(stdmaps.Keys(replacements)) {
		info, err := replacements[name].Info()
		if err != nil {
			return "", fmt.Errorf("identify map %q: %w", name, err)
		}
		id, _ := info.ID()
		fmt.Fprintf(sum, "%s=%d\n", name, id)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// pinPrefix starts the name of a directory of pinned programs; the digest follows.
const pinPrefix = "programs-"

// obtain returns the programs with these settings: those pinned, or newly loaded ones, which it
// pins. Reading the objects takes longer than all else at an agent's restart, so it happens only to
// load them.
func (l *Loader) obtain(used []object, rodata fromPodConfig, digest string) (map[string]*ebpf.Program, map[string]int, error) {
	programs := make(map[string]*ebpf.Program)
	dir := ""
	if l.maps.Dir() != "" {
		dir = filepath.Join(l.maps.Dir(), pinPrefix+digest)
	}
	pinned := dir != ""
	for _, name := range programNames(used) {
		if !pinned {
			break
		}
		p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, name), nil)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				l.log.Warn("Could not take over a pinned program; reloading it", "program", name, "error", err)
			}
			pinned = false
			break
		}
		programs[name] = p
	}
	if !pinned {
		closeAll(programs)
		var err error
		if programs, err = l.load(used, rodata); err != nil {
			return nil, nil, err
		}
		if dir != "" {
			if err := publish(programs, dir); err != nil {
				closeAll(programs)
				return nil, nil, err
			}
		}
	}
	ids := make(map[string]int)
	for name, p := range programs {
		info, err := p.Info()
		if err != nil {
			closeAll(programs)
			return nil, nil, fmt.Errorf("identify program %s: %w", name, err)
		}
		id, _ := info.ID()
		ids[name] = int(id)
	}
	l.log.Info("Programs ready", "digest", digest, "pinned", pinned)
	return programs, ids, nil
}

// load verifies the programs, on all processors, and binds them to the maps.
func (l *Loader) load(used []object, rodata fromPodConfig) (map[string]*ebpf.Program, error) {
	var mu sync.Mutex // guards programs
	programs := make(map[string]*ebpf.Program)
	replacements := l.maps.Replacements()
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, o := range used {
		group.Go(func() error {
			spec, err := o.spec(rodata, replacements)
			if err != nil {
				return err
			}
			c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
			if err != nil {
				if errors.Is(err, ebpf.ErrNotSupported) {
					err = fmt.Errorf("%w: %w", datapath.ErrUnsupported, err)
				}
				return fmt.Errorf("load program %s: %w", o.name, err)
			}
			defer c.Close()
			mu.Lock()
			defer mu.Unlock()
			for program := range spec.Programs {
				programs[program] = c.DetachProgram(program)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		closeAll(programs)
		return nil, err
	}
	return programs, nil
}

// spec reads an object and fills in the settings.
func (o object) spec(rodata fromPodConfig, replacements map[string]*ebpf.Map) (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(o.elf))
	if err == nil {
		err = spec.Variables["cfg"].Set(rodata)
	}
	if err != nil {
		return nil, fmt.Errorf("read the built-in object of %s: %w", o.name, err)
	}
	for name, m := range replacements {
		if ms := spec.Maps[name]; ms != nil {
			ms.MaxEntries = m.MaxEntries() // sizes are a matter of the maps alone
		}
	}
	return spec, nil
}

// publish pins programs so that the directory appears with all of them or not at all.
func publish(programs map[string]*ebpf.Program, dir string) error {
	aside := dir + "-new" // the BPF file system allows no dots
	// Left by a crash, or half of a set that could not be taken over.
	for _, old := range []string{aside, dir} {
		if err := os.RemoveAll(old); err != nil {
			return fmt.Errorf("remove unfinished pins: %w", err)
		}
	}
	if err := os.Mkdir(aside, 0o700); err != nil {
		return fmt.Errorf("make the directory of pinned programs: %w", err)
	}
	for name, p := range programs {
		if err := p.Pin(filepath.Join(aside, name)); err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	if err := os.Rename(aside, dir); err != nil {
		return fmt.Errorf("publish pinned programs: %w", err)
	}
	return nil
}

// removeStale removes the pins of all other sets of programs.
func (l *Loader) removeStale() error {
	if l.maps.Dir() == "" {
		return nil
	}
	entries, err := os.ReadDir(l.maps.Dir())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), pinPrefix) && e.Name() != pinPrefix+l.digest {
			errs = append(errs, os.RemoveAll(filepath.Join(l.maps.Dir(), e.Name())))
		}
	}
	return errors.Join(errs...)
}
