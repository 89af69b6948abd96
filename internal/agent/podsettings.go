package agent

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/datapath"
)

// Options of what pods get besides addresses and routes: the plugin asks for it with GET /config.
const (
	flagBigTCP4       = "enable-ipv4-big-tcp"
	flagBigTCP6       = "enable-ipv6-big-tcp"
	flagReservedPorts = "container-ip-local-reserved-ports"
	flagPMTUD         = "packetization-layer-pmtud-mode"

	reservedAuto = "auto"

	pmtudBlackhole = "blackhole"
	pmtudUnset     = "unset"
)

// pmtudModes are the values of flagPMTUD; those but unset are values of the kernel's
// tcp_mtu_probing (RFC 4821).
func pmtudModes() []string { return []string{pmtudBlackhole, "always", "disabled", pmtudUnset} }

// validatePods checks these options. One that would have no effect is refused.
func (c *Config) validatePods() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	for _, f := range []struct {
		flag, family string
		on, has      bool
	}{{flagBigTCP4, "ipv4", c.BigTCPIPv4, c.EnableIPv4}, {flagBigTCP6, "ipv6", c.BigTCPIPv6, c.EnableIPv6}} {
		switch {
		case !f.on:
		case !f.has:
			bad(f.flag, "has no effect with --enable-%s=false", f.family)
		case c.RoutingMode == "tunnel":
			bad(f.flag, "packets beyond 64 KiB do not fit into the tunnel; it needs --routing-mode=native")
		}
	}
	if _, err := c.podReservedPorts(); err != nil {
		errs = append(errs, err)
	}
	if c.PodPMTUD != "" && !slices.Contains(pmtudModes(), c.PodPMTUD) {
		bad(flagPMTUD, "%q is not one of %s", c.PodPMTUD, strings.Join(pmtudModes(), ", "))
	}
	return errors.Join(errs...)
}

// podReservedPorts returns the ports that are reserved in pods in the kernel's form, such as
// 8472,20000-20100. The tunnel's is among those by default: a pod's packet that has it as its
// source, and the node's address after masquerading, would be taken for one of the tunnel.
func (c *Config) podReservedPorts() (string, error) {
	var out []string
	for _, item := range strings.FieldsFunc(c.PodReservedPorts, func(r rune) bool { return r == ',' || r == ' ' }) {
		if item == reservedAuto {
			if c.RoutingMode == "tunnel" {
				out = append(out, strconv.Itoa(int(c.TunnelPort)))
			}
			continue
		}
		r, err := datapath.ParsePortRange(item)
		if err != nil {
			return "", fmt.Errorf("--%s: %w", flagReservedPorts, err)
		}
		out = append(out, r.String())
	}
	return strings.Join(out, ","), nil
}

// podSettings completes the answer to the plugin.
func (a *api) podSettings(st *rest.DaemonConfigurationStatus) {
	st.IPLocalReservedPorts, _ = a.cfg.podReservedPorts() // Validate has parsed it
	st.PacketizationLayerPMTUDMode = a.cfg.PodPMTUD
	devices := a.deviceFacts()
	st.GSOMaxSize = devices.SegmentSize6
	st.GSOIPv4MaxSize, st.GROIPv4MaxSize = devices.SegmentSize4, devices.SegmentSize4
}

// reportBigTCP says what became of the options: a device may take no packets beyond 64 KiB.
func (a *api) reportBigTCP(devices datapath.Devices, device string) {
	const part = "big-tcp"
	var asked []string
	for _, f := range []struct {
		on   bool
		flag string
	}{{a.cfg.BigTCPIPv4, flagBigTCP4}, {a.cfg.BigTCPIPv6, flagBigTCP6}} {
		if f.on {
			asked = append(asked, "--"+f.flag)
		}
	}
	options := strings.Join(asked, " and ")
	switch size := max(devices.SegmentSize4, devices.SegmentSize6); {
	case len(asked) == 0:
	case size == 0:
		msg := fmt.Sprintf("%s without effect: device %s takes packets of up to %d bytes for segmentation", options, device, devices.SegmentLimit)
		a.log.Warn("no BIG TCP on this node", "reason", msg)
		a.components.Set(part, rest.StateWarning, msg)
	default:
		a.components.Set(part, rest.StateOk, fmt.Sprintf("%s: up to %d bytes, in pods that are made from now on", options, size))
	}
}
