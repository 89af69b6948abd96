package link

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
)

// setting is a kernel parameter below /proc/sys and the value it should have. A path is used rather
// than the dotted form because device names may hold dots.
type setting struct {
	path, value string
	// from, if set, is the only value that is changed; others are the administrator's choice.
	from string
	// optional parameters may be missing from the kernel.
	optional bool
}

// forwardingSettings let the node route for its pods. They must precede the devices, since new ones
// inherit them.
func forwardingSettings(n datapath.Node) []setting {
	out := []setting{
		// A packet of a remote pod arrives by the tunnel although its route points to
		// hawser_host: reverse-path filtering would drop it. The programs check sources.
		// The kernel takes the larger of "all" and the device's.
		{path: "net/ipv4/conf/all/rp_filter", value: "0"},
		{path: "net/ipv4/ip_forward", value: "1"},
		// The node is the pods' only way out; there is no better one to redirect them to.
		{path: "net/ipv4/conf/all/send_redirects", value: "0"},
	}
	if n.RouterIPv6.IsValid() || n.Balance6 {
		if n.Device != "" {
			// Forwarding makes the kernel ignore router advertisements, and drop the default route
			// learnt from one, unless the device has 2.
			out = append(out, setting{path: "net/ipv6/conf/" + n.Device + "/accept_ra", value: "2", from: "1", optional: true})
		}
		out = append(out, setting{path: "net/ipv6/conf/all/forwarding", value: "1"})
	}
	return out
}

// deviceSettings are those of one of our own devices.
func deviceSettings(name string) []setting {
	out := []setting{
		{path: "net/ipv4/conf/" + name + "/rp_filter", value: "0"},
		{path: "net/ipv4/conf/" + name + "/send_redirects", value: "0"},
		{path: "net/ipv4/conf/" + name + "/forwarding", value: "1"},
	}
	if name == HostDevice {
		// The programs have the stack fragment packets by it that have a service's address, which
		// may be the node's own. Nothing else comes in there.
		out = append(out, setting{path: "net/ipv4/conf/" + name + "/accept_local", value: "1"})
	}
	return out
}

// apply writes the settings that differ. A value that is right is not written, so that a read-only
// /proc/sys with the right values will do.
func apply(settings []setting) error {
	var errs []error
	for _, s := range settings {
		path := filepath.Join("/proc/sys", s.path)
		b, err := os.ReadFile(path)
		if err != nil {
			if !s.optional || !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("read kernel parameter %s: %w", s.path, err))
			}
			continue
		}
		have := strings.TrimSpace(string(b))
		if have == s.value || (s.from != "" && have != s.from) {
			continue
		}
		if err := os.WriteFile(path, []byte(s.value), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("set kernel parameter %s to %s: %w", s.path, s.value, err))
		}
	}
	return errors.Join(errs...)
}
