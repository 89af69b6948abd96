package agent

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/validate"
)

// Options of what pods get besides addresses and routes: the plugin asks for it with GET /config.
const (
	flagReservedPorts = "container-ip-local-reserved-ports"
	flagPMTUD         = "packetization-layer-pmtud-mode"

	reservedAuto = "auto"
	reservedNone = "none"

	pmtudBlackhole = "blackhole"
	pmtudUnset     = "unset"

	datapathVeth = "veth"
	datapathAuto = "auto"
)

// PodOptions configure what pods get besides addresses and routes.
type PodOptions struct {
	// PodReservedPorts are ports that no socket of a pod gets without asking for one, PodPMTUD how
	// pods discover the MTU of a path whose routers send no ICMP; see podReservedPorts.
	PodReservedPorts, PodPMTUD string
	// DatapathMode is how pods are connected: veth, or auto for the same; or lb-only for a node
	// without pods that leads clients to services.
	DatapathMode string
}

func podDefaults() PodOptions {
	return PodOptions{PodReservedPorts: reservedAuto, PodPMTUD: pmtudBlackhole, DatapathMode: datapathVeth}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *PodOptions) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.PodReservedPorts, flagReservedPorts, o.PodReservedPorts,
		"ports that sockets of pods get only if they ask for them, such as 8472,20000-20100; auto for the port of the tunnel, none for no ports")
	fs.StringVar(&o.PodPMTUD, flagPMTUD, o.PodPMTUD, "whether TCP in pods discovers the path MTU itself: blackhole (when large packets vanish), "+
		"always, disabled, or unset for the kernel's default")
	fs.StringVar(&o.DatapathMode, "datapath-mode", o.DatapathMode, "how pods are connected: veth (a pair of interfaces), or auto, which is the same; "+
		"or lb-only: the node has no pods and forwards clients to services whose backends are on other machines")
}

// pmtudModes are the values of flagPMTUD; those but unset are values of the kernel's
// tcp_mtu_probing (RFC 4821).
func pmtudModes() []string { return []string{pmtudBlackhole, "always", "disabled", pmtudUnset} }

// Validate checks every option and joins all faults in one error.
func (o *PodOptions) Validate() error {
	var errs validate.Errors
	if o.PodPMTUD != "" {
		errs.OneOf(flagPMTUD, o.PodPMTUD, pmtudModes()...)
	}
	switch o.DatapathMode {
	case datapathVeth, datapathAuto, datapathLBOnly:
	default:
		errs.Add("--datapath-mode: %q is not supported: pods get veth pairs; set %s, or %s for a node without pods", o.DatapathMode, datapathVeth, datapathLBOnly)
	}
	return errs.Err()
}

// podReservedPorts returns the ports that are reserved in pods in the kernel's form, such as
// 8472,20000-20100. The tunnel's is among those by default: a pod's packet that has it as its
// source, and the node's address after masquerading, would be taken for one of the tunnel.
func (c *Config) podReservedPorts() (string, error) {
	if strings.TrimSpace(c.PodReservedPorts) == reservedNone {
		return "", nil
	}
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
