package maps

import (
	"cmp"
	"path/filepath"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/validate"
)

// Config is where the maps are pinned and how large they are. A size only matters when a map is
// made: one that is found pinned keeps its size, so that its content survives.
type Config struct {
	// Dir is the directory of the pins, on a BPF file system; one is mounted if it is not. Empty
	// means that nothing is pinned and the maps go with the process.
	Dir string

	// CTEntries is the number of tracked flows, of 184 bytes each; the oldest go first.
	CTEntries int
	// MasqueradeEntries is the number of flows, of 64 bytes each, of clients outside that other
	// nodes serve in this node's name. None makes room for another: further flows are dropped.
	MasqueradeEntries int
	// PolicyEntries is the number of entries of all rule sets together.
	PolicyEntries int
	// RuleSetEntries is the number of entries that one rule set may have of these. 0 means the
	// default: an eighth, but no less than 16,384, or all if there are fewer.
	RuleSetEntries int
	// RuleSets is the number of rule sets.
	RuleSets int
	// Endpoints is the number of local endpoints.
	Endpoints int
	// IPCacheEntries and IPCachePrefixes are the numbers of single addresses and of true prefixes.
	IPCacheEntries  int
	IPCachePrefixes int
	// Blocks is the number of blocks of addresses that rules name.
	Blocks int
	// Services is the number of frontends of services, ServiceBackends that of the backends of all
	// frontends together, Affinities how many clients' backends are remembered, and Sockets how
	// many addresses of services that the node's own sockets use, and their backends.
	Services        int
	ServiceBackends int
	Affinities      int
	Sockets         int
	// MaglevServices is the number of frontends that have a table of cells, of 36 kB each, and
	// SourceRanges that of the ranges of clients of all frontends together. 0 means the default, as
	// it does in configurations of Cilium.
	MaglevServices int
	SourceRanges   int
	// Fragments is the number of fragmented packets under way, of 112 bytes each. Endpoints have
	// places of their own among them, see FragmentPlaces.
	Fragments int
	// EventBytes is the size of each buffer of events, one for each kind: a power of two and a
	// multiple of the page.
	EventBytes int
}

// Defaults returns the sizes for a common node, pinned at the usual place.
func Defaults() Config {
	return Config{
		Dir:               "/sys/fs/bpf/hawser",
		CTEntries:         262144,
		MasqueradeEntries: 131072,
		PolicyEntries:     262144,
		RuleSets:          4096,
		Endpoints:         4096,
		IPCacheEntries:    524288,
		IPCachePrefixes:   65536,
		Blocks:            65536,
		Services:          65536,
		ServiceBackends:   262144,
		Affinities:        65536,
		Sockets:           65536,
		MaglevServices:    1024,
		SourceRanges:      65536,
		Fragments:         131072,
		EventBytes:        1 << 20,
	}
}

// Flags binds the settings to command-line flags, with the current values as defaults.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.IntVar(&c.CTEntries, "bpf-ct-max", c.CTEntries, "maximum number of tracked flows")
	fs.IntVar(&c.MasqueradeEntries, "bpf-nat-global-max", c.MasqueradeEntries, "maximum number of flows of outside clients that this node forwards to other nodes with its own address")
	fs.IntVar(&c.PolicyEntries, "bpf-policy-map-max", c.PolicyEntries, "maximum number of policy entries of all rule sets together")
	fs.IntVar(&c.RuleSetEntries, "bpf-policy-rule-set-max", c.RuleSetEntries, "maximum number of policy entries of one rule set, which the pods of one identity share; 0 for an eighth of all, but at least 16384")
	fs.IntVar(&c.IPCacheEntries, "bpf-ipcache-max", c.IPCacheEntries, "maximum number of single addresses with a known identity")
	fs.IntVar(&c.IPCachePrefixes, "bpf-ipcache-prefix-max", c.IPCachePrefixes, "maximum number of prefixes with a known identity")
	fs.IntVar(&c.Blocks, "bpf-policy-block-max", c.Blocks, "maximum number of blocks of addresses in policies")
	fs.IntVar(&c.Services, "bpf-lb-map-max", c.Services, "maximum number of frontends of services")
	fs.IntVar(&c.ServiceBackends, "bpf-lb-service-backend-map-max", c.ServiceBackends, "maximum number of backends of all frontends together")
	fs.IntVar(&c.Affinities, "bpf-lb-affinity-map-max", c.Affinities, "maximum number of clients whose backend is remembered")
	fs.IntVar(&c.Sockets, "bpf-lb-sock-rev-map-max", c.Sockets, "maximum number of service addresses in use by the node's own sockets, including their backends")
	fs.IntVar(&c.MaglevServices, "bpf-lb-maglev-map-max", c.MaglevServices, "maximum number of frontends with Maglev, of 36 kB each; 0 for the default")
	fs.IntVar(&c.SourceRanges, "bpf-lb-source-range-map-max", c.SourceRanges, "maximum number of source ranges of all frontends together; 0 for the default")
	fs.IntVar(&c.Fragments, "bpf-fragments-map-max", c.Fragments, "maximum number of fragmented packets in flight")
	fs.IntVar(&c.EventBytes, "bpf-events-bytes", c.EventBytes, "size of each of the buffers of drops, verdicts and traces in bytes, a power of two")
}

// Validate reports all settings out of range.
func (c Config) Validate() error {
	var errs validate.Errors
	errs.If(c.Dir != "" && !filepath.IsAbs(c.Dir), "directory %q of the pins is not an absolute path", c.Dir)
	for _, s := range []struct {
		name string
		n    int
		min  int
	}{
		// An LRU map keeps spare entries for every processor and serves badly below that.
		{"bpf-ct-max", c.CTEntries, 128 * runtime.NumCPU()},
		{"bpf-nat-global-max", c.MasqueradeEntries, 1},
		{"bpf-fragments-map-max", c.Fragments, 128},
		{"bpf-policy-map-max", c.PolicyEntries, 1},
		{"bpf-policy-rule-set-max", c.RuleSetEntries, 0},
		{"rule sets", c.RuleSets, 1},
		{"endpoints", c.Endpoints, 1},
		{"bpf-ipcache-max", c.IPCacheEntries, 1},
		{"bpf-ipcache-prefix-max", c.IPCachePrefixes, 1},
		{"bpf-policy-block-max", c.Blocks, 1},
		{"bpf-lb-map-max", c.Services, 1},
		{"bpf-lb-service-backend-map-max", c.ServiceBackends, 1},
		{"bpf-lb-affinity-map-max", c.Affinities, 128},
		{"bpf-lb-sock-rev-map-max", c.Sockets, 128},
		{"bpf-lb-maglev-map-max", c.MaglevServices, 0},
		{"bpf-lb-source-range-map-max", c.SourceRanges, 0},
		{"bpf-events-bytes", c.EventBytes, 4096},
	} {
		errs.If(s.n < s.min || s.n > 1<<26, "%s is %d, want %d to %d", s.name, s.n, s.min, 1<<26)
	}
	errs.If(c.EventBytes&(c.EventBytes-1) != 0, "bpf-events-bytes is %d, want a power of two", c.EventBytes)
	return errs.Err()
}

// ruleSetShare is the least that is the default of RuleSetEntries.
const ruleSetShare = 16384

// ruleSetMax returns how many entries a rule set may have.
func (c Config) ruleSetMax() int {
	return cmp.Or(c.RuleSetEntries, max(c.PolicyEntries/8, ruleSetShare))
}

// entries returns the size of each map that has a setting.
func (c Config) entries() map[string]int {
	return map[string]int{
		kernelMapCt:            c.CTEntries,
		kernelMapCtExcess:      c.CTEntries / excessPart,
		kernelMapMasquerade:    c.MasqueradeEntries,
		kernelMapPolicy:        c.PolicyEntries,
		kernelMapRuleSets:      c.RuleSets,
		kernelMapEndpoints:     c.Endpoints,
		kernelMapAddresses:     2 * c.Endpoints,
		kernelMapIpcache:       c.IPCacheEntries,
		kernelMapIpcachePrefix: c.IPCachePrefixes,
		kernelMapBlocks:        c.Blocks,
		kernelMapLbServices:    c.Services,
		kernelMapLbSlots:       c.ServiceBackends,
		kernelMapLbMembers:     c.ServiceBackends,
		kernelMapLbAffinity:    c.Affinities,
		kernelMapLbSockets:     c.Sockets,
		kernelMapLbTables:      cmp.Or(c.MaglevServices, Defaults().MaglevServices) * tableParts,
		kernelMapLbRanges:      cmp.Or(c.SourceRanges, Defaults().SourceRanges),
		kernelMapFragments:     c.Fragments,
		kernelMapEventsDrop:    c.EventBytes,
		kernelMapEventsVerdict: c.EventBytes,
		kernelMapEventsTrace:   c.EventBytes,
	}
}
