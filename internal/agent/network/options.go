package network

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/validate"
)

// Options that messages name.
const (
	flagRouter4 = "local-router-ipv4"
	flagRouter6 = "local-router-ipv6"
	// FlagBigTCP4 and FlagBigTCP6 are of IPv4 and of IPv6.
	FlagBigTCP4 = "enable-ipv4-big-tcp"
	FlagBigTCP6 = "enable-ipv6-big-tcp"
)

// Options configure a node's network.
type Options struct {
	EnableIPv4 bool
	EnableIPv6 bool
	NodeIPv4   string
	NodeIPv6   string
	// RouterIPv4 and RouterIPv6 are the node's own addresses in the pod network, of its pod CIDRs;
	// by default the agent chooses.
	RouterIPv4, RouterIPv6 string

	Devices []string
	MTU     int

	RoutingMode    string // tunnel or native
	TunnelProtocol string // vxlan
	TunnelPort     uint16
	MasqueradeIPv4 bool
	MasqueradeIPv6 bool
	// NativeCIDRs are destinations that are not masqueraded besides the pod CIDRs of known nodes.
	NativeIPv4CIDR string
	NativeIPv6CIDR string
	// BigTCPIPv4 and BigTCPIPv6 have packets of TCP be larger than 64 KiB inside the node, as far
	// as the device takes them.
	BigTCPIPv4, BigTCPIPv6 bool
	// DirectRoutes has native routing set routes to the pods of other nodes, and SkipUnreachable
	// none through nodes that are not on the network of the device.
	DirectRoutes, SkipUnreachable bool
	// NoPods means that the node has none. It is no flag.
	NoPods bool
}

// Defaults returns the options of a node without options.
func Defaults() Options {
	return Options{
		EnableIPv4: true, EnableIPv6: true,
		RoutingMode: "tunnel", TunnelProtocol: "vxlan", TunnelPort: link.DefaultTunnelPort, MasqueradeIPv4: true, MasqueradeIPv6: true, DirectRoutes: true,
	}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *Options) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.EnableIPv4, "enable-ipv4", o.EnableIPv4, "give pods IPv4 addresses")
	fs.BoolVar(&o.EnableIPv6, "enable-ipv6", o.EnableIPv6, "give pods IPv6 addresses")
	fs.StringVar(&o.NodeIPv4, "ipv4-node", o.NodeIPv4, "IPv4 address of this node; by default that of the device")
	fs.StringVar(&o.NodeIPv6, "ipv6-node", o.NodeIPv6, "IPv6 address of this node; by default that of the device")
	fs.StringVar(&o.RouterIPv4, flagRouter4, o.RouterIPv4, "IPv4 address of this node in the pod network, the gateway of its pods: a free address of its pod CIDR; by default the agent chooses")
	fs.StringVar(&o.RouterIPv6, flagRouter6, o.RouterIPv6, "the same for IPv6")
	fs.StringSliceVar(&o.Devices, "devices", o.Devices, "device towards other nodes; by default that of the default route")
	fs.IntVar(&o.MTU, "mtu", o.MTU, "MTU of the network between nodes; by default that of the device")
	fs.StringVar(&o.RoutingMode, "routing-mode", o.RoutingMode, "how packets travel between nodes: tunnel or native")
	fs.StringVar(&o.TunnelProtocol, "tunnel-protocol", o.TunnelProtocol, "encapsulation in tunnel mode: vxlan")
	fs.Uint16Var(&o.TunnelPort, "tunnel-port", o.TunnelPort, "UDP port of the encapsulation")
	fs.BoolVar(&o.MasqueradeIPv4, "enable-ipv4-masquerade", o.MasqueradeIPv4, "give pod traffic that leaves the cluster the node's IPv4 address")
	fs.BoolVar(&o.MasqueradeIPv6, "enable-ipv6-masquerade", o.MasqueradeIPv6, "give pod traffic that leaves the cluster the node's IPv6 address")
	fs.BoolVar(&o.BigTCPIPv4, FlagBigTCP4, o.BigTCPIPv4, "allow TCP packets over IPv4 of up to 192 KiB before segmentation and after reassembly, on the device and in new pods; with native routing")
	fs.BoolVar(&o.BigTCPIPv6, FlagBigTCP6, o.BigTCPIPv6, "the same for IPv6 packets before segmentation")
	fs.StringVar(&o.NativeIPv4CIDR, "ipv4-native-routing-cidr", o.NativeIPv4CIDR, "IPv4 range that is never masqueraded")
	fs.StringVar(&o.NativeIPv6CIDR, "ipv6-native-routing-cidr", o.NativeIPv6CIDR, "IPv6 range that is never masqueraded")
	fs.BoolVar(&o.DirectRoutes, "auto-direct-node-routes", o.DirectRoutes,
		"with native routing, set routes to the pods of each other node through that node; without it the network must have routes to pods")
	fs.BoolVar(&o.SkipUnreachable, "direct-routing-skip-unreachable", o.SkipUnreachable,
		"with --auto-direct-node-routes, skip nodes that are not on the network of the device: its routers must have routes to their pods")
}

// Tunnel reports whether other nodes' pods are reached through a tunnel.
func (o *Options) Tunnel() bool { return o.RoutingMode == "tunnel" }

// NativeCIDRs are the destinations of the options that are not masqueraded, of valid options.
func (o *Options) NativeCIDRs() (out []netip.Prefix) {
	for _, c := range []string{o.NativeIPv4CIDR, o.NativeIPv6CIDR} {
		if c != "" {
			out = append(out, netip.MustParsePrefix(c))
		}
	}
	return out
}

// BigTCP returns the options that ask for packets beyond 64 KiB.
func (o *Options) BigTCP() (flags []string) {
	if o.BigTCPIPv4 {
		flags = append(flags, "--"+FlagBigTCP4)
	}
	if o.BigTCPIPv6 {
		flags = append(flags, "--"+FlagBigTCP6)
	}
	return flags
}

// Validate checks every option and joins all faults in one error.
func (o *Options) Validate() error {
	var errs validate.Errors
	errs.OneOf("routing-mode", o.RoutingMode, "tunnel", "native")
	errs.OneOf("tunnel-protocol", o.TunnelProtocol, "vxlan")
	errs.If(!o.EnableIPv4 && !o.EnableIPv6, "--enable-ipv4 and --enable-ipv6 are both off: pods would have no address")
	errs = append(errs, checkRange("ipv4-native-routing-cidr", o.NativeIPv4CIDR, true), checkRange("ipv6-native-routing-cidr", o.NativeIPv6CIDR, false),
		checkAddr("ipv4-node", o.NodeIPv4, true), checkAddr("ipv6-node", o.NodeIPv6, false),
		checkAddr(flagRouter4, o.RouterIPv4, true), checkAddr(flagRouter6, o.RouterIPv6, false))
	errs.If(len(o.Devices) > 1, "--devices: %s: one device is supported", strings.Join(o.Devices, ","))
	errs.If(o.MTU != 0 && (o.MTU < 1280 || o.MTU > 65535), "--mtu: %d is outside 1280 to 65535", o.MTU)
	errs.If(o.TunnelPort == 0, "--tunnel-port: must not be 0")
	for _, f := range []struct {
		flag, family string
		on, has      bool
	}{{FlagBigTCP4, "ipv4", o.BigTCPIPv4, o.EnableIPv4}, {FlagBigTCP6, "ipv6", o.BigTCPIPv6, o.EnableIPv6}} {
		switch {
		case !f.on:
		case !f.has:
			errs.Add("--%s: has no effect with --enable-%s=false", f.flag, f.family)
		case o.Tunnel():
			errs.Add("--%s: packets beyond 64 KiB do not fit into the tunnel; it needs --routing-mode=native", f.flag)
		}
	}
	return errs.Err()
}

// checkRange reports what is wrong with a range; an empty one is fine.
func checkRange(flag, value string, v4 bool) error {
	if value == "" {
		return nil
	}
	return ValidRange(flag, value, v4)
}

// ValidRange reports why the value of an option is not a range of a family.
func ValidRange(flag, value string, v4 bool) error {
	p, err := netip.ParsePrefix(value)
	switch {
	case err != nil:
		return fmt.Errorf("--%s: %q is not a CIDR", flag, value)
	case p.Addr().Is4() != v4:
		return fmt.Errorf("--%s: %q is of the wrong address family", flag, value)
	case p != p.Masked():
		return fmt.Errorf("--%s: %q has address bits beyond its length; did you mean %s?", flag, value, p.Masked())
	}
	return nil
}

func checkAddr(flag, value string, v4 bool) error {
	if ip, err := netip.ParseAddr(value); value != "" && (err != nil || ip.Is4() != v4) {
		return fmt.Errorf("--%s: %q is not an address of that family", flag, value)
	}
	return nil
}
