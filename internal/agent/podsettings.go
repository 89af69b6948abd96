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
	flagReservedPorts = "container-ip-local-reserved-ports"
	flagPMTUD         = "packetization-layer-pmtud-mode"

	reservedAuto = "auto"

	pmtudBlackhole = "blackhole"
	pmtudUnset     = "unset"
)

// pmtudModes are the values of flagPMTUD; those but unset are values of the kernel's
// tcp_mtu_probing (RFC 4821).
func pmtudModes() []string { return []string{pmtudBlackhole, "always", "disabled", pmtudUnset} }

// validatePods checks these options.
func (c *Config) validatePods() error {
	_, err := c.podReservedPorts()
	if c.PodPMTUD != "" && !slices.Contains(pmtudModes(), c.PodPMTUD) {
		err = errors.Join(err, fmt.Errorf("--%s: %q is not one of %s", flagPMTUD, c.PodPMTUD, strings.Join(pmtudModes(), ", ")))
	}
	return err
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
func (c *Config) podSettings(st *rest.DaemonConfigurationStatus, devices datapath.Devices) {
	st.IPLocalReservedPorts, _ = c.podReservedPorts() // Validate has parsed it
	st.PacketizationLayerPMTUDMode = c.PodPMTUD
	st.GSOMaxSize = devices.SegmentSize6
	st.GSOIPv4MaxSize, st.GROIPv4MaxSize = devices.SegmentSize4, devices.SegmentSize4
}
